"""The fused stage: one source in, its records out, its clips, arrays and entry laid down in the ledger.

Probe, shots, stitch, cut, scores and fingerprints are one task, so that a source's bytes never leave the
worker that reads them, and rows carry no media at all.
"""

import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, BinaryIO

from av.video.frame import VideoFrame
from numpy.typing import NDArray

from curate.config import SourceStageConfig
from curate.cut import Clip, cut
from curate.dedup import fingerprint as dedup_fingerprint
from curate.filters import scores
from curate.frames.budget import check_clips, most_bytes
from curate.frames.child_process import Isolated, Poisoned
from curate.frames.faults import fault_of
from curate.frames.frame_times import source_frames
from curate.frames.perceptual import embed_pictures
from curate.frames.source import SourceError
from curate.ledger import Ledger, digest
from curate.models.device import one_thread
from curate.records import Record, Row, clip_key
from curate.shots.spans import Span, spans
from curate.source_pass.at_work import noted
from curate.source_pass.sampling import Collected, Collector
from curate.source_pass.scan import Scan, scan
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import TakeDowns, emptied
from loader.errors import UsageError
from loader.storage import StorageConfig, open_object

STAGE = "cut"
CONTAINER_TAGS = ("description", "synopsis", "comment", "title")

_HASH_BLOCK_BYTES = 1 << 20
_MAX_TAG_CHARS = 16_000


@dataclass(frozen=True)
class CutSource:
    """Source row -> rows of its records, and one of what belongs to the whole source. Raises for no data reason.

    Attributes:
        config: of all it does.
        storage: how to reach the source.
        ledger: where clips and arrays go.
        fingerprint: of the configuration.
        down: What was taken down, of which no clip is made.
    """

    config: SourceStageConfig
    storage: StorageConfig
    ledger: Ledger
    fingerprint: str
    down: TakeDowns = field(default_factory=TakeDowns)

    def __call__(self, row: Row) -> list[Row]:
        """``{"record": ...}`` of each span in order, then ``{"source": ...}``."""
        source = SourceRef(**row)
        if source.fault:
            return [_failed(source, "open", source.fault)]
        try:
            storage, name = open_object(source.location, self.storage, source.listed_in)
        except UsageError as error:
            return [_failed(source, "open", str(error))]
        try:
            with (
                one_thread(),
                storage.open(name) as file,
                noted(file, self.ledger, source_id(source), source.uri, source.size) as watched,
            ):
                before = _state(file)
                rows = list(self._cut(source, watched))
                if _state(file) != before:
                    raise SourceError("changed while it was read; work on it again with --retry-failed")
                return rows
        except Exception as error:  # noqa: BLE001 - those that are no fault of the source are raised again
            return [_failed(source, *fault_of(error))]

    def _cut(self, source: SourceRef, file: BinaryIO) -> Iterator[Row]:
        began_s = time.process_time()
        with scan(file, self.config) as seen:
            yield from self._clips(source, file, seen)
        tags = {
            tag: seen.probe.metadata[tag][:_MAX_TAG_CHARS]
            for tag in CONTAINER_TAGS
            if tag in seen.probe.metadata
        }
        duration_s = float(seen.timeline.times_s[-1])
        cpu_s = time.process_time() - began_s
        yield {
            "source": {
                "cpu_s": cpu_s,
                "tags": tags,
                "pixel_s": seen.size.width * seen.size.height * duration_s,
            }
        }

    def _clips(self, source: SourceRef, file: BinaryIO, seen: Scan) -> Iterator[Row]:
        times_s, ahead = seen.timeline.times_s, seen.ahead
        # A clock that breaks promises nothing.
        promised_s = None if seen.timeline.breaks else seen.probe.promised_s
        parts = spans(seen.timeline, seen.transitions, promised_s, self.config.spans)
        base = Record(source.uri, parts=len(parts), source_sha256=_sha256(file))
        records = [self._planned(base, part, span) for part, span in enumerate(parts)]
        wanted = [span for span, record in zip(parts, records, strict=True) if record.state == "kept"]
        limits, line, size = self.config.probe, seen.timeline, seen.size
        frames = sum(len(source_frames(times_s, span.first, span.last, line.rate)) for span in wanted)
        check_clips(frames, line.frames, size.width * size.height, seen.source_bytes, limits)
        collector = Collector(seen.probe.codec, self.config.scores)

        def observe(span: Span, number: int, decoded: VideoFrame, finished: VideoFrame) -> None:
            since_s, held_s = times_s[number] - times_s[span.first], times_s[number + 1] - times_s[number]
            collector.push(float(since_s), float(held_s), decoded, finished)

        max_bytes = most_bytes(seen.source_bytes, limits)
        clips = cut(file, line, wanted, size, self.config.cut, observe, ahead or {}, max_bytes)
        arrays: dict[str, NDArray[Any]] = {}
        for span, record in zip(parts, records, strict=True):
            if record.state == "kept":
                result = next(clips)
                if not isinstance(result, Clip):
                    collector.drop()
                    record = replace(record, state="failed", stage="cut", reason=result.reason)
                else:
                    known = ahead is not None and span in ahead
                    collected = ahead.collected(span) if ahead and known else collector.take()
                    record = self._finished(record, result, collected, seen, arrays)
            yield {"record": record.to_row()}
        if arrays:
            self.ledger.write_arrays(arrays_name(source, self.fingerprint), arrays)

    def _planned(self, base: Record, part: int, span: Span) -> Record:
        record = replace(base, part=part, start_s=span.start_s, end_s=span.end_s)
        if span.fault is not None:
            return replace(
                record,
                state=span.fault_state,
                stage=span.stage,
                reason=span.fault,
                score=span.score,
                threshold=span.threshold,
            )
        named = replace(record, key=clip_key(base.source_sha256, span.start_s, span.end_s))
        removal = self.down.of(named)
        return emptied(named, removal) if removal else record

    def _finished(
        self, record: Record, clip: Clip, collected: Collected, seen: Scan, arrays: dict[str, NDArray[Any]]
    ) -> Record:
        span, line = clip.span, seen.timeline
        shown = source_frames(line.times_s, span.first, span.last, line.rate)
        sample = collected.sample(clip, seen.stats, shown)
        record = replace(
            record,
            stage="cut",
            key=clip_key(record.source_sha256, clip.span.start_s, clip.span.end_s),
            frames=clip.frames,
            fps=float(clip.rate),
            height=clip.geometry.height,
            width=clip.geometry.width,
            duration_s=float(clip.frames / clip.rate),
            audio=f"none ({clip.audio_fault})" if clip.audio_fault else clip.audio,
            sha256=clip.sha256,
            clip_bytes=len(clip.data),
            scores=scores(sample, self.config.scores),
        )
        self.ledger.write_clip(record.clip_id, clip.data)
        arrays[f"{record.clip_id}.perceptual"] = embed_pictures(sample.pictures)
        arrays[f"{record.clip_id}.fingerprint"] = dedup_fingerprint(sample.pictures, sample.times_s)
        return record


@dataclass
class SourceStage:
    """The stage as runners call it; rows that are no sources pass through.

    Attributes:
        work: what is done to one source.
        wanted: row of a clip -> whether later stages shall see it.
        isolate: whether in a child process.
        attempts: as of `Isolated`.
        max_source_s: as of `Isolated`.
    """

    work: CutSource
    wanted: Callable[[Row], bool]
    isolate: bool
    attempts: int
    max_source_s: float

    def __call__(self, rows: list[Row]) -> Iterator[Row]:
        """Yields ``{"closed": entry, ...}`` for each source, then a row for each of its clips."""
        for row in rows:
            if row["kind"] != "source":
                yield row
                continue
            source = SourceRef(**row["source"])
            began = time.monotonic()
            entry = {**self._entry(source), "seconds": time.monotonic() - began}
            self.work.ledger.close(STAGE, self.work.fingerprint, source_id(source), entry)
            yield {"kind": "closed", "id": source_id(source), "entry": entry}
            yield from filter(self.wanted, clip_rows(source, entry, row["todo"]))

    def _entry(self, source: SourceRef) -> Row:
        found = self._run(asdict(source))
        if isinstance(found, Poisoned):
            poisoned = Record(source.uri, state="failed", stage="worker", reason=found.reason)
            return {"records": [poisoned.to_row()]}
        entry: Row = {"records": [row["record"] for row in found if "record" in row]}
        for row in found:
            entry.update(row.get("source", {}))
        return entry

    def _run(self, row: Row) -> list[Row] | Poisoned:
        if not self.isolate:
            return list(self.work(row))
        sent = _Sent(pickle.dumps(self.work), self.work)
        return _isolated(sent, self.attempts, self.max_source_s)(row)

    @staticmethod
    def close() -> None:
        """Lets the child of this process go."""
        _isolated.cache_clear()


@dataclass(frozen=True)
class _Sent:
    """Work that is the same where the same bytes of it would be sent to a child."""

    sent: bytes
    work: CutSource = field(compare=False)


@lru_cache(maxsize=1)
def _isolated(sent: _Sent, attempts: int, max_source_s: float) -> Isolated:
    """The child of this process. Ray makes a stage anew for each source, and an interpreter takes a second to start."""
    return Isolated(sent.work, attempts, max_source_s)


def clip_rows(source: SourceRef, entry: Row, todo: Iterable[str]) -> Iterator[Row]:
    """A row for each clip of a closed source that later stages have something to do for."""
    stages = list(todo)
    for record in entry["records"] if stages else ():
        if record["state"] == "kept":
            yield {**clip_row(source, entry, record), "todo": stages}


def clip_row(source: SourceRef, entry: Row, record: Row) -> Row:
    """A clip of a closed source as stages over clips take it, before anything is found or left to do."""
    tags = entry.get("tags", {})
    return {
        "kind": "clip",
        "record": record,
        "caption": source.caption,
        "listed_in": source.listed_in,
        "tags": tags,
        "todo": [],
        "found": {},
    }


def source_id(source: SourceRef) -> str:
    """Identity of a source's bytes as far as it can be told without reading them."""
    return digest(source.uri, str(source.size), source.version)


def arrays_name(source: SourceRef, fingerprint: str) -> str:
    """Where the arrays of a source's clips lie."""
    return f"{source_id(source)}-{fingerprint}"


def _failed(source: SourceRef, stage: str, reason: str) -> Row:
    return {"record": Record(source.uri, state="failed", stage=stage, reason=reason).to_row()}


def _state(file: BinaryIO) -> tuple[int, int] | None:
    """Size and time of the last change of a local file; other storages themselves tell of changes."""
    try:
        found = os.fstat(file.fileno())
    except OSError:  # no file of this machine
        return None
    return found.st_size, found.st_mtime_ns


def _sha256(file: BinaryIO) -> str:
    whole = hashlib.sha256()
    left = file.seek(0, os.SEEK_END)  # a file that grows has no end
    file.seek(0)
    while left > 0 and (block := file.read(min(left, _HASH_BLOCK_BYTES))):
        whole.update(block)
        left -= len(block)
    return whole.hexdigest()
