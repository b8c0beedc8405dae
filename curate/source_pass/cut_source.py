"""The fused stage: one source in, its summary out; its clips, arrays and summary are written to the ledger.

Probe, shots, stitch, cut, scores and fingerprints are one task. A source's bytes thus never leave the worker
that reads them, and no task carries media.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Protocol

from av.video.frame import VideoFrame
from numpy.typing import NDArray

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut import CutClip, cut
from reelweave.curate.cut.clip import EncodedSpans
from reelweave.curate.cut.crop import BarMeter
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.trim import trim_spans
from reelweave.curate.dedup.fingerprint import ARRAY as FINGERPRINT
from reelweave.curate.filters import scores
from reelweave.curate.filters.measure import ADDED
from reelweave.curate.frames.budget import check_clips, most_bytes
from reelweave.curate.frames.clocks.rates import FLEETING_S
from reelweave.curate.frames.container.further_film import unread_entries
from reelweave.curate.frames.decode_entry import Entry
from reelweave.curate.frames.faults import fault_of
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.perceptual import embed_pictures
from reelweave.curate.frames.picture import Geometry, size_at
from reelweave.curate.frames.probe import Probe
from reelweave.curate.frames.sound_clock import SoundClock
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, SourceSummary, clip_key
from reelweave.curate.models.device import one_thread
from reelweave.curate.shots.boundaries import name_boundaries
from reelweave.curate.shots.listed import layers_of, listed_spans
from reelweave.curate.shots.spans import Span, cut_off_span, further_span, left_out_span, spans, unread_span
from reelweave.curate.source_pass.at_work import note_progress
from reelweave.curate.source_pass.sampling import ClipPictures, FrameStats, PictureCollector
from reelweave.curate.source_pass.scan import Scan, scan
from reelweave.curate.source_pass.source_file import sha256_of, watch_change
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import TakeDowns, empty_record
from reelweave.loader.base.operations import measure_operations
from reelweave.loader.errors import MachineError, UsageError
from reelweave.loader.storage import Storage, StorageConfig, open_object
from reelweave.loader.storage.steady import whole_reads

STAGE = "cut"
CONTAINER_TAGS = ("description", "synopsis", "comment", "title")

_PAUSES_S = (0.5, 2.0)
"""Seconds before a source is worked on once more, from its start, after a fault of the machine."""

_MAX_TAG_CHARS = 16_000

_OF_SPANS = (
    "start_s", "end_s", "segment", "ends_by", "ends_probability", "inside", "inside_s", "inside_probability",
)  # fmt: skip
"""Fields that a record takes from its span."""


class AheadSpans(EncodedSpans, Protocol):
    """Spans encoded before, with their samples."""

    def take_pictures(self, span: Span) -> ClipPictures:
        """Return, once, the samples that were collected from a span that was encoded."""


class Seen(Protocol):
    """Facts of a source's frames that cutting needs."""

    @property
    def timeline(self) -> FrameTimes:
        """Display times of the source's frames."""

    @property
    def size(self) -> Geometry:
        """Width and height of its clips, pixels."""

    @property
    def stats(self) -> FrameStats:
        """Statistics of every frame."""

    @property
    def source_bytes(self) -> int:
        """Size of the source's file, bytes."""

    @property
    def sound_clock(self) -> SoundClock | None:
        """Repaired clock of the sound."""

    @property
    def smart(self) -> SmartPackets | None:
        """Notes on its packets for ``cut.mode=smart``."""

    @property
    def bars(self) -> BarMeter | None:
        """Bars of its frames, which clips lose, for ``cut.crop_bars``."""

    @property
    def remark(self) -> str:
        """Words on changes to all pictures that no mark of the source asks for, such as deinterlacing."""


@dataclass(frozen=True)
class CutSource:
    """Function from a source to its summary. Faults of the data are records.

    Attributes:
        config: Configuration of the pass.
        storage: Options for opening the source.
        ledger: Destination of clips and arrays.
        fingerprint: Digest of the configuration.
        down: Take-downs, of which no clip is made.
    """

    config: SourceStageConfig
    storage: StorageConfig
    ledger: Ledger
    fingerprint: str
    down: TakeDowns = field(default_factory=TakeDowns)

    def __call__(self, source: SourceRef) -> SourceSummary:
        """Cut a source, and write its clips and arrays to the ledger.

        Raises:
            MachineError: a fault of the machine outlived some tries.
        """
        if source.undone:
            raise MachineError(source.fault or "", lasts=True)
        if source.fault:
            return failed_source(source, "open", source.fault)
        try:
            storage, name = open_object(source.location, self.storage, source.listed_in)
        except UsageError as error:
            return failed_source(source, "open", str(error))
        for pause_s in _PAUSES_S:
            try:
                return self._read(source, storage, name)
            except MachineError as error:
                if error.lasts:
                    raise
            time.sleep(pause_s)
            if (current := storage.stat(name)) is None or current.version != source.version:
                raise MachineError("changed since it was listed", lasts=True)
        return self._read(source, storage, name)

    def _read(self, source: SourceRef, storage: Storage, name: str) -> SourceSummary:
        try:
            with (
                one_thread(),
                storage.open(name) as file,
                whole_reads(file, verify=True),
                watch_change(file),
                note_progress(file, self.ledger, source_id(source), source.uri, source.size) as watched,
            ):
                return self._cut(source, watched)
        except Exception as error:  # noqa: BLE001 - those that are no fault of the source are raised again
            return failed_source(source, *fault_of(error))

    def _cut(self, source: SourceRef, file: BinaryIO) -> SourceSummary:
        with measure_operations() as operation_s, scan(file, self.config, source.segments) as scanned:
            records = tuple(self._clips(source, file, scanned))
        tags = tags_of(scanned.probe)
        duration_s = float(scanned.timeline.times_s[-1])
        pixel_s = scanned.size.width * scanned.size.height * duration_s
        cpu_s, measured = sum(operation_s.values()), dict(ADDED) or None
        return SourceSummary(records, cpu_s, tags, pixel_s, measured=measured, operation_s=operation_s)

    def _clips(self, source: SourceRef, file: BinaryIO, scanned: Scan) -> Iterator[Record]:
        # A clock that breaks promises nothing.
        promised_s = None if scanned.timeline.breaks else scanned.probe.promised_s
        unread = unread_entries(file) if scanned.probe.container.startswith("mov,") else None
        left_out = unread or scanned.unshown
        behind = [] if left_out is None else [left_out_span(scanned.timeline, left_out, promised_s)]
        promised_s = promised_s if left_out is None else None
        config = self.config
        if source.segments:
            parts = listed_spans(
                scanned.timeline, scanned.transitions, promised_s, config.spans, source.segments
            )
        else:
            parts = spans(scanned.timeline, scanned.transitions, promised_s, config.spans)
        if scanned.packets is not None and not source.segments:  # these are exact
            parts = trim_spans(
                parts,
                scanned.packets,
                scanned.begin_pts,
                scanned.timeline,
                scanned.size,
                config.cut,
                config.spans,
                scanned.bars,
            )
        parts = name_boundaries(parts, scanned.transitions, scanned.candidates, scanned.timeline)
        parts += behind
        if scanned.further is not None:
            parts = [*parts, further_span(scanned.timeline, scanned.further)]
        elif scanned.ended_by and not cut_off_span(scanned.timeline, promised_s):
            parts = [*parts, unread_span(scanned.timeline, scanned.ended_by)]
        records = self.plan_records(source, sha256_of(file), parts)
        kept_spans = [span for span, record in zip(parts, records, strict=True) if record.state == "kept"]
        check_wanted(kept_spans, scanned, self.config)
        arrays: dict[str, NDArray[Any]] = {}
        layers = layers_of(parts) if source.segments else [list(range(len(parts)))]
        ahead, used_bytes = scanned.ahead, 0
        for layer in layers:  # one, unless listed segments overlap
            layer_parts, planned = [parts[index] for index in layer], [records[index] for index in layer]
            cut_records = self.cut_records(
                file, scanned, scanned.probe.codec, layer_parts, planned, arrays, ahead, used_bytes=used_bytes
            )
            for index, record in zip(layer, cut_records, strict=True):
                records[index] = record
                used_bytes += record.clip_bytes
            ahead = None
        yield from records
        if arrays:
            self.ledger.blobs.write_arrays(arrays_name(source, self.fingerprint), arrays)

    def plan_records(self, source: SourceRef, sha256: str, parts: Sequence[Span]) -> list[Record]:
        """Return the records of a source's spans before any is cut; those to cut are kept."""
        base = Record(source.uri, parts=len(parts), source_sha256=sha256)
        return [self._plan_record(base, part, span) for part, span in enumerate(parts)]

    def cut_records(
        self,
        file: BinaryIO,
        facts: Seen,
        codec: str,
        parts: Sequence[Span],
        records: Sequence[Record],
        arrays: dict[str, NDArray[Any]],
        ahead: AheadSpans | None = None,
        entry: Entry | None = None,
        used_bytes: int = 0,
    ) -> Iterator[Record]:
        """Cut the kept spans, and yield all records in their final state.

        Args:
            file: File of the source.
            facts: Facts known of the source.
            codec: Name of the source's decoder.
            parts: Spans.
            records: Records of the spans, from `plan_records`.
            arrays: Destination of the arrays of clips.
            ahead: Clips that were encoded before.
            entry: See `reelweave.curate.cut.cut`.
            used_bytes: Size of the source's clips that were cut before.
        """
        times_s, limits = facts.timeline.times_s, self.config.probe
        kept_spans = [span for span, record in zip(parts, records, strict=True) if record.state == "kept"]
        collector = PictureCollector(codec, self.config.scores)
        shown: dict[Span, set[int]] = {}

        # Scores see a frame for as long as it is shown; one that hardly is, only if the clip has it.
        def observe(span: Span, frame_index: int, decoded: VideoFrame, finished: VideoFrame) -> None:
            since_s = times_s[frame_index] - times_s[span.first]
            held_s = times_s[frame_index + 1] - times_s[frame_index]
            if held_s < FLEETING_S and facts.timeline.pulldown is None:
                if span not in shown:
                    shown[span] = set(facts.timeline.clip_frames(span.first, span.last).tolist())
                if frame_index not in shown[span]:
                    return
            collector.push(float(since_s), float(held_s), decoded, finished)

        clips = cut(
            file,
            facts.timeline,
            kept_spans,
            facts.size,
            self.config.cut,
            observe,
            {} if ahead is None else ahead,
            most_bytes(facts.source_bytes, limits) - used_bytes,
            facts.sound_clock,
            entry,
            facts.smart,
            facts.bars,
        )
        # Clips come in the order of the kept spans; pictures of a failed one are dropped.
        for span, record in zip(parts, records, strict=True):
            if record.state == "kept":
                result = next(clips)
                if not isinstance(result, CutClip):
                    collector.drop()
                    record = replace(record, state="failed", stage="cut", reason=result.reason)
                else:
                    is_encoded = ahead is not None and span in ahead
                    collected = (
                        ahead.take_pictures(span) if ahead is not None and is_encoded else collector.take()
                    )
                    record = self._finish_record(record, result, collected, facts, arrays)
            yield record

    def _plan_record(self, base: Record, part: int, span: Span) -> Record:
        record = replace(base, part=part, **{name: getattr(span, name) for name in _OF_SPANS})
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
        return empty_record(named, removal) if removal else record

    def _finish_record(
        self,
        record: Record,
        clip: CutClip,
        collected: ClipPictures,
        facts: Seen,
        arrays: dict[str, NDArray[Any]],
    ) -> Record:
        span, line = clip.span, facts.timeline
        shown = line.clip_frames(span.first, span.last)
        footage_fps = float(line.footage_rate(span.first, span.last))
        sample = collected.sample(clip, facts.stats, shown, footage_fps)
        cropped = "" if clip.crop is None else clip.crop.describe()
        remarks = (
            facts.remark,
            clip.audio_remark,
            cropped,
            clip.remark,
            line.left_out(span.first, span.last),
        )
        record = replace(
            record,
            stage="cut",
            reason="; ".join(filter(None, remarks)),
            key=clip_key(record.source_sha256, clip.span.start_s, clip.span.end_s),
            frames=clip.frames,
            fps=float(clip.rate),
            height=clip.geometry.height,
            width=clip.geometry.width,
            duration_s=float(clip.frames / clip.rate),
            audio=f"none ({clip.audio_fault})" if clip.audio_fault else clip.audio,
            sha256=clip.sha256,
            clip_bytes=len(clip.data),
            scores=scores(sample) | clip.cut_scores,
        )
        self.ledger.blobs.write_clip(record.clip_id, clip.data)
        arrays[f"{record.clip_id}.perceptual"] = embed_pictures(sample.pictures)
        arrays[f"{record.clip_id}{FINGERPRINT}"] = collected.fingerprint
        return record


def check_wanted(kept_spans: Sequence[Span], facts: Seen, config: SourceStageConfig) -> None:
    """Raise `SourceError` for clips that are too large for their source."""
    line = facts.timeline
    frames, pixels = 0, 0
    for span in kept_spans:
        size, num_frames = (
            size_at(line.shapes, span.first, facts.size),
            len(line.clip_frames(span.first, span.last)),
        )
        frames, pixels = frames + num_frames, pixels + num_frames * size.width * size.height
    check_clips(frames, line.frames, pixels, facts.source_bytes, config.probe)


def tags_of(header: Probe) -> dict[str, str]:
    """Return the text that a container holds, by tag."""
    return {tag: header.metadata[tag][:_MAX_TAG_CHARS] for tag in CONTAINER_TAGS if tag in header.metadata}


def failed_source(source: SourceRef, stage: str, reason: str) -> SourceSummary:
    """Return the summary of a source that gave no span."""
    return SourceSummary((Record(source.uri, state="failed", stage=stage, reason=reason),))


def source_id(source: SourceRef) -> str:
    """Return the identity of a source's bytes, as far as it is known without reading them, and of its listed spans."""
    spans = [[list(segment.span) for segment in source.segments]] if source.segments else []
    return digest(source.uri, str(source.size), source.version, *spans)


def arrays_name(source: SourceRef, fingerprint: str) -> str:
    """Return the name of the arrays of a source's clips."""
    return arrays_of(source_id(source), fingerprint)


def arrays_of(identity: str, fingerprint: str) -> str:
    """Return `arrays_name` of the source with a `source_id`."""
    return f"{identity}-{fingerprint}"
