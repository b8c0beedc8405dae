"""The stages as plain callables over rows; a runner decides where they run.

``cut_source`` fuses probe, shots and cut in one task, so that a source's bytes never leave the worker that
reads them; after it a row carries at most one clip's encoded bytes, until ``stage_clip`` lays them down.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from av.video.frame import VideoFrame

from curate.captions import Caption, find_caption
from curate.config import CurateConfig
from curate.cut import Clip, cut
from curate.filters import decide, span_scores
from curate.inputs import SourceRef
from curate.ledger import Ledger
from curate.picture import Geometry, geometry
from curate.probe import Probe, probe
from curate.records import Record, Row, clip_key
from curate.shots import ColourDetector, Transition
from curate.source import SourceError, open_video
from curate.spans import Span, spans
from curate.timeline import Decoder, Timeline, timeline
from loader.errors import RunError
from loader.storage import open_object
from loader.text import count_tokens

_HASH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Scan:
    """What one whole decode of a source tells."""

    probe: Probe
    timeline: Timeline
    transitions: list[Transition]
    size: Geometry


@dataclass(frozen=True)
class CutSource:
    """Source row -> one row per span, with the clip where one was kept. Never raises for a data reason."""

    config: CurateConfig

    def __call__(self, row: Row) -> Iterator[Row]:
        """Yields the rows of one source, in the order of their spans."""
        source = SourceRef(**row)
        failed = Record(source=source.uri, state="failed")
        if source.fault:
            yield _row(replace(failed, stage="open", reason=source.fault))
            return
        storage, name = open_object(source.uri, self.config.storage)
        try:
            with storage.open(name) as file:
                yield from self._cut(source, file)
        except FileNotFoundError:
            yield _row(replace(failed, stage="open", reason="disappeared before it was read"))
        except RunError as error:
            # A storage that fails is a fault of the environment; one file nobody may read is not.
            if not isinstance(error.__cause__, PermissionError):
                raise
            yield _row(replace(failed, stage="open", reason="may not be read (permission denied)"))

    def _cut(self, source: SourceRef, file: BinaryIO) -> Iterator[Row]:
        config = self.config
        try:
            seen = scan(file, config)
        except SourceError as error:
            yield _row(Record(source=source.uri, state="failed", stage="probe", reason=str(error)))
            return
        parts = spans(seen.timeline, seen.transitions, seen.probe.promised_s, config.spans)
        base = Record(source=source.uri, parts=len(parts), source_sha256=_sha256(file))
        caption = self._caption(source, seen.probe)
        records = [_decided(base, part, span, seen.size, config) for part, span in enumerate(parts)]
        wanted = [span for span, record in zip(parts, records, strict=True) if record.state == "kept"]
        clips = cut(file, seen.timeline, wanted, seen.size, config.cut)
        for record in records:
            if record.state != "kept":
                yield _row(record)
                continue
            result = next(clips)
            if isinstance(result, Clip):
                yield _row(_with_clip(record, result, caption), result.data)
            else:
                yield _row(replace(record, state="failed", stage="cut", reason=result.reason))

    def _caption(self, source: SourceRef, found: Probe) -> Caption:
        if source.caption:
            return Caption(" ".join(source.caption.split()), "input")
        storage, name = open_object(source.uri, self.config.storage)
        return find_caption(storage, name, found.metadata, self.config.captions)


@dataclass(frozen=True)
class StageClip:
    """Row with a clip -> the same row without it; the clip's bytes lie in the ledger's staging area."""

    ledger: Ledger

    def __call__(self, row: Row) -> Row:
        """Lays the clip down under its key; doing it twice changes nothing."""
        clip = row["clip"]
        if clip:
            self.ledger.write_clip(row["key"], clip)
        return {name: value for name, value in row.items() if name != "clip"}


def scan(file: BinaryIO, config: CurateConfig) -> Scan:
    """Decodes a source once, whole: its frame times, damage, shot transitions and picture size.

    Memory is bounded by one frame, the detector's window and 8 bytes per frame.

    Raises:
        SourceError: nothing can be decoded, or a limit is broken.
    """
    file.seek(0)
    with open_video(file) as (container, stream):
        found = probe(container, stream, config.probe)
        detector = ColourDetector(config.shots)
        width, height = detector.analysis_size
        decoder = Decoder(container, stream)
        pts: list[int | None] = []
        first: VideoFrame | None = None
        last_duration: int | None = None
        for frame in decoder.frames():
            first = first or frame
            pts.append(frame.pts)
            last_duration = frame.duration
            small = frame.reformat(width, height, "rgb24", interpolation="AREA").to_ndarray()
            detector.push(np.asarray(small, dtype=np.uint8))
            if len(pts) > config.probe.max_frames:
                raise SourceError(f"has more than probe.max_frames = {config.probe.max_frames} frames")
        if first is None or stream.time_base is None:
            raise SourceError("no frame could be decoded")
        line = timeline(
            pts, stream.time_base, last_duration, found.rate, decoder.damage(), config.cut.max_fps
        )
        size = geometry(first, stream.codec_context.sample_aspect_ratio)
        return Scan(found, line, detector.finish(), size)


def _decided(base: Record, part: int, span: Span, size: Geometry, config: CurateConfig) -> Record:
    record = replace(base, part=part, start_s=span.start_s, end_s=span.end_s)
    if span.fault is not None:
        stage = "shots" if span.fault_state == "filtered" else "decode"
        return replace(record, state=span.fault_state, stage=stage, reason=span.fault)
    scores = span_scores(span, size)
    rejection = decide(scores, config.filters)
    if rejection is None:
        return replace(record, scores=scores)
    return replace(
        record,
        state="filtered",
        stage=rejection.stage,
        reason=rejection.reason,
        score=rejection.score,
        threshold=rejection.threshold,
        scores=scores,
    )


def _with_clip(record: Record, clip: Clip, caption: Caption) -> Record:
    return replace(
        record,
        stage="cut",
        key=clip_key(record.source_sha256, clip.span.start_s, clip.span.end_s),
        frames=clip.frames,
        fps=float(clip.rate),
        height=clip.geometry.height,
        width=clip.geometry.width,
        duration_s=float(clip.frames / clip.rate),
        caption=caption.text,
        caption_source=caption.source,
        text_tokens=count_tokens(caption.text),
        sha256=clip.sha256,
        clip_bytes=len(clip.data),
    )


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    for block in iter(lambda: file.read(_HASH_BLOCK_BYTES), b""):
        digest.update(block)
    return digest.hexdigest()


def _row(record: Record, clip: bytes = b"") -> Row:
    return {**record.to_row(), "clip": clip}
