"""Cost of curation relative to a floor: one bare decode of each source, one bare encode of what is kept.

Both are measured in the same run and process, in CPU seconds of all threads, so that a busy machine counts for
both. Ours is everything that happens to a source: opening, hashing, probe, shots, stitching, cutting, verifying,
scores and fingerprints.
"""

import contextlib
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.cut import CutConfig
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.picture import Finisher, Geometry
from reelweave.curate.frames.source import open_video
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.storage import open_storage


class Floor(NamedTuple):
    """Floor of one source: CPU seconds of a bare decode and of a bare encode of its kept frames."""

    frames: int
    decode_s: float
    encode_s: float

    @property
    def cpu_s(self) -> float:
        """Decode and encode together."""
        return self.decode_s + self.encode_s


def bench_curate(videos: str, config: CurateConfig) -> dict[str, Any]:
    """Return CPU seconds of curation and of its floor, and their ratio, in total and per source with clips."""
    files: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as folder:
        stage = config.source_stage()
        work = CutSource(stage, config.storage, Ledger(open_storage(folder)), config_digest(stage))
        for source in list_sources([videos], config.storage):
            began = time.process_time()
            records = work(source).records
            cpu_s = time.process_time() - began
            kept_records = [record for record in records if record.state == "kept"]
            if kept_records:
                floor_s = floor(source, kept_records, config.cut).cpu_s
                files.append(
                    {"source": source.uri, "cpu_s": cpu_s, "floor_cpu_s": floor_s, "ratio": cpu_s / floor_s}
                )
    cpu_s, floor_s = (sum(file[name] for file in files) for name in ("cpu_s", "floor_cpu_s"))
    return {
        "cpu_s": cpu_s,
        "floor_cpu_s": floor_s,
        "ratio": cpu_s / floor_s if files else None,
        "files": files,
    }


def floor(source: SourceRef, kept_records: list[Record], config: CutConfig) -> Floor:
    """Measure CPU seconds of one bare decode of a source and one bare encode of its kept frames."""
    frames = 0
    with Path(source.location).open("rb") as file, open_video(file) as (container, stream):
        began = time.process_time()
        for packet in container.demux(stream):
            with contextlib.suppress(av.error.InvalidDataError):  # a damaged packet costs the floor as little
                frames += len(packet.decode())
        decode_s = time.process_time() - began
    return Floor(frames, decode_s, sum(_encode_s(source, record, config) for record in kept_records))


def _encode_s(source: SourceRef, record: Record, config: CutConfig) -> float:
    """Measure CPU seconds of encoding as many frames as a clip has, from its start in the source."""
    assert record.start_s is not None
    size = Geometry(record.width, record.height)
    spent = 0.0
    remaining = record.frames
    with (
        Path(source.location).open("rb") as file,
        open_video(file) as (container, stream),
        av.open("null", "w", format="null") as target,
    ):
        pictures = Finisher(size)
        encoder = _encoder(target, size, record, config)
        # Frames are decoded and scaled outside the measured time; only their encoding counts.
        begin: float | None = None
        for frame in Decoder(container, stream).frames():
            shown_s = (
                float(frame.pts * stream.time_base) if frame.pts is not None and stream.time_base else 0.0
            )
            begin = shown_s if begin is None else begin
            if remaining and shown_s - begin >= record.start_s - 1e-3:
                picture = pictures.finish(frame)
                picture.pts, picture.pict_type = record.frames - remaining, 0
                picture.time_base = encoder.codec_context.time_base
                spent += _time_stream(encoder, picture)
                remaining -= 1
            if not remaining:
                break
        spent += _time_stream(encoder, None)
    return spent


def _encoder(target: Any, size: Geometry, record: Record, config: CutConfig) -> VideoStream:
    stream: VideoStream = target.add_stream("libx264", rate=round(record.fps))
    stream.width, stream.height, stream.pix_fmt = size.width, size.height, "yuv420p"
    stream.time_base = stream.codec_context.time_base = 1 / Fraction(round(record.fps))
    stream.codec_context.thread_count = config.threads
    stream.codec_context.gop_size = config.keyframe_every
    stream.options = {"crf": str(config.crf), "preset": config.preset, "x264-params": "mbtree=0"}
    return stream


def _time_stream(stream: VideoStream, picture: VideoFrame | None) -> float:
    began = time.process_time()
    stream.encode(picture)
    return time.process_time() - began
