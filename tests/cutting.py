"""Cutting a file from the path to its clips, without the stages around it or with the whole fused stage."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.container import InputContainer

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.cut import CutClip, CutConfig, FailedClip, Observe, cut
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.frame_times import FrameTimes, timeline
from reelweave.curate.frames.picture import Geometry, geometry
from reelweave.curate.frames.sound_clock import NotingDemuxer
from reelweave.curate.frames.source import open_video
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.shots.spans import Span
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.source_pass.scan import scan
from reelweave.curate.sources.inputs import list_sources
from reelweave.loader.dataset.samples.copied_frames import NAMES
from reelweave.loader.storage import StorageConfig, open_storage


@dataclass(frozen=True)
class Seen:
    timeline: FrameTimes
    size: Geometry

    def spans(self, bounds: Sequence[tuple[int, int]]) -> list[Span]:
        times_s = self.timeline.times_s
        return [Span(first, last, float(times_s[first]), float(times_s[last])) for first, last in bounds]


def look(path: Path, max_fps: float = 60.0, max_bits: int = 8) -> Seen:
    """The timeline and size of a source."""
    with path.open("rb") as file, open_video(file) as (container, stream):
        packets = NotingDemuxer(container, None)
        decoder = Decoder(cast(InputContainer, packets), stream)
        frames = [
            (frame.pts, frame.duration, geometry(frame, stream.sample_aspect_ratio, max_bits))
            for frame in decoder.frames()
        ]
        line = timeline(
            [pts for pts, _, _ in frames],
            stream.time_base,
            frames[-1][1],
            stream.average_rate or stream.base_rate,
            decoder.damage(),
            max_fps,
            deinterlace=decoder.interlaced,
            coded=packets.coded,
        )
        return Seen(line, frames[0][2])


def cut_file(
    path: Path,
    bounds: Sequence[tuple[int, int]] | None = None,
    config: CutConfig | None = None,
    observe: Observe | None = None,
) -> list[CutClip | FailedClip]:
    """What cutting frames ``[first, last)`` of a file gives; all frames without bounds."""
    config = config or CutConfig()
    seen = look(path, max_bits=config.max_bits)
    wanted = seen.spans(bounds or [(0, seen.timeline.frames)])
    with path.open("rb") as file:
        return list(cut(file, seen.timeline, wanted, seen.size, config, observe))


def clips_of(
    path: Path,
    bounds: Sequence[tuple[int, int]] | None = None,
    config: CutConfig | None = None,
    observe: Observe | None = None,
) -> list[CutClip]:
    """The same, where every span must become a clip."""
    results = cut_file(path, bounds, config, observe)
    failed = [result for result in results if isinstance(result, FailedClip)]
    assert not failed, failed
    return [result for result in results if isinstance(result, CutClip)]


def cut_smart(path: Path, bounds: Sequence[tuple[int, int]], **cut_values: Any) -> list[CutClip]:
    """Smart cuts of frames ``[first, last)`` of a file, in a second pass; all frames are compared with the source."""
    values = {"mode": "smart", "verify": "whole", **cut_values}
    stage = CurateConfig.model_validate({"cut": values}).source_stage()
    with path.open("rb") as file, scan(file, stage) as seen:
        times_s = seen.timeline.times_s
        wanted = [Span(first, last, float(times_s[first]), float(times_s[last])) for first, last in bounds]
        results = list(cut(file, seen.timeline, wanted, seen.size, stage.cut, smart=seen.smart))
    assert all(isinstance(clip, CutClip) for clip in results), results
    return [clip for clip in results if isinstance(clip, CutClip)]


def describe(data: bytes) -> dict[str, object]:
    """What a reader sees of a clip's pictures."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        times = [frame.pts * stream.time_base for frame in container.decode(stream)]
        return {
            "codec": stream.codec_context.name,
            "pix_fmt": stream.codec_context.pix_fmt,
            "size": (stream.codec_context.width, stream.codec_context.height),
            "frames": len(times),
            "gaps": {b - a for a, b in itertools.pairwise(times)},
            "first": times[0],
        }


def pictures(source: Path | bytes) -> list[np.ndarray]:
    """The decoded planes of every frame."""
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


def sound(data: bytes) -> tuple[np.ndarray, int, int]:
    """The decoded sound of a clip: float samples [channels, n], their rate and the first one's time in samples."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        frames = list(container.decode(stream))
        first = round(frames[0].pts * frames[0].time_base * frames[0].sample_rate)
        return np.concatenate([frame.to_ndarray() for frame in frames], axis=1), frames[0].sample_rate, first


def curated(path: Path, out: Path, **sections: dict[str, Any]) -> list[tuple[Record, bytes]]:
    """Every record of one source, with its clip."""
    config = CurateConfig.model_validate(sections).source_stage()
    ledger = Ledger(open_storage(out))
    work = CutSource(config, StorageConfig(), ledger, config_digest(config))
    (source,) = list_sources([str(path)], StorageConfig())
    records = work(source).records
    return [(record, ledger.blobs.read_clip(record.clip_id) if record.sha256 else b"") for record in records]


def measured_scores(record: Record) -> dict[str, float]:
    """Scores of a clip without those that tell how it was cut."""
    return {name: value for name, value in record.scores.items() if name not in NAMES}


def assert_damaged_films_have_the_spans_of_encode(whole: Path, **cut: Any) -> None:
    """Five films with bytes overwritten in three places have the same spans, states and frames in both modes."""
    data = whole.read_bytes()
    for seed in range(5):
        rng, damaged = np.random.default_rng(seed), bytearray(data)
        for at in rng.integers(200, len(data) - 12, 3).tolist():
            damaged[at : at + 9] = rng.bytes(9)
        path = whole.with_name(f"{seed}{whole.suffix}")
        path.write_bytes(damaged)
        encoded, smart = (
            [
                (record.start_s, record.end_s, record.state, record.frames)
                for record, _ in curated(
                    path,
                    whole.with_name(f"{mode} {seed}"),
                    spans={"min_clip_s": 0.4, "max_clip_s": 1.5},
                    cut={"mode": mode, "verify": "whole", **cut},
                )
            ]
            for mode in ("encode", "smart")
        )
        assert smart == encoded
