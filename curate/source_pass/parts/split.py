"""Sources in parts: each part is scanned by a task of its own, then what they saw is joined, then each part is cut.

A source is given in again and again: each time it says which steps of its parts are left, until it closes. What has
ended is in the ledger, so a killed run repeats what was in work alone. Whatever is unusual sends the source whole
through `CutSource`, whose result therefore is that of a source in parts, in every case.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO

from numpy.typing import NDArray

from reelweave.curate.filters.measure import ADDED
from reelweave.curate.frames.budget import most_bytes
from reelweave.curate.frames.decode_entry import Entry
from reelweave.curate.frames.faults import fault_of
from reelweave.curate.frames.source import SourceError
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.records import Record, SourceSummary, source_summary, to_json
from reelweave.curate.models.device import one_thread
from reelweave.curate.source_pass.at_work import note_progress
from reelweave.curate.source_pass.cut_source import (
    CutSource,
    arrays_name,
    failed_source,
    source_id,
)
from reelweave.curate.source_pass.part import Part, may_be_long, source_parts
from reelweave.curate.source_pass.parts.clips import PartClips, keep_clips
from reelweave.curate.source_pass.parts.join import JOIN, Joined, join
from reelweave.curate.source_pass.parts.scan import scan_part
from reelweave.curate.source_pass.parts.store import PARTS, Arrays, PartStore, StepNote
from reelweave.curate.source_pass.source_file import file_state
from reelweave.curate.source_pass.tasks import PartStep, PartTask
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.sources.segments import overlap
from reelweave.loader.base.operations import measure_operations, sum_operations
from reelweave.loader.errors import MachineError, ObjectError, UsageError
from reelweave.loader.storage import open_object
from reelweave.loader.storage.remote.retry import counted_retries
from reelweave.loader.storage.steady import whole_reads

SOUND_S = 5.0
"""Seconds before a clip from which its sound is read; sound that leads its pictures by more keeps a source whole."""


Found = tuple[dict[str, Any], Arrays]
"""Findings of a step: JSON values and arrays."""


@dataclass(frozen=True)
class SplitOutcome:
    """Answer to one source or part.

    Attributes:
        summary: Summary of the source, once it can be closed.
        parts: Steps of parts that are left to do before.
        in_parts: True if something of its parts may be in the ledger.
        fault: Reason why the source of a part stays whole, or None.
        retries: Number of requests to storage that were sent again.
        undone: Fault of the machine that kept the step from being done; "" without.
    """

    summary: SourceSummary | None = None
    parts: tuple[PartTask, ...] = ()
    in_parts: bool = False
    fault: str | None = None
    retries: int = 0
    undone: str = ""


@dataclass(frozen=True)
class SplitCut:
    """Function that does what can be done of a source, or one step of a part.

    Attributes:
        cut: Function that cuts a whole source.
        part_s: Duration of a part in seconds, about; None for no parts.
    """

    cut: CutSource
    part_s: float | None

    def __call__(self, work: SourceRef | PartTask) -> SplitOutcome:
        """Do one step. Faults of the data are records; it raises for no other reason."""
        with counted_retries() as count:
            try:
                outcome = self._step(work)
            except MachineError as error:
                outcome = SplitOutcome(undone=str(error))
        return replace(outcome, retries=count.retries)

    def _step(self, work: SourceRef | PartTask) -> SplitOutcome:
        if isinstance(work, PartTask):
            step = self._scan if work.step == "scan" else self._cut
            return SplitOutcome(fault=self._end(work.source, work.step, work.part, step))
        try:
            parts = self._parts(work)
        except ObjectError as error:  # a server that was asked in vain need not be asked again
            return SplitOutcome(failed_source(work, *fault_of(error)))
        return self._outcome(work, parts) if parts else SplitOutcome(self.cut(work))

    def lose(self, task: PartTask, reason: str) -> None:
        """Record that every worker of a part was lost."""
        self._store(task.source, task.part.count).end(task.step, task.part.number, StepNote(lost=reason))

    def drop(self, source: SourceRef) -> None:
        """Remove what the ledger holds of a closed source's parts."""
        self._store(source, 0).drop()

    def _parts(self, source: SourceRef) -> tuple[Part, ...]:
        if self.part_s is None or source.fault or not may_be_long(source, self.part_s):
            return ()
        if self.cut.config.spans.overlapping == "keep" and overlap(source.segments):
            return ()  # which takes several passes
        try:
            with self._open_source(source) as (file, _):
                return source_parts(file, self.cut.config, self.part_s)
        except ObjectError:
            raise
        except Exception as error:  # noqa: BLE001 - those that are no fault of the source are raised again
            fault_of(error)
            return ()

    def _outcome(self, source: SourceRef, parts: Sequence[Part]) -> SplitOutcome:
        store = self._store(source, len(parts))
        scans = self._remaining_steps(source, store, "scan", parts)
        if isinstance(scans, SplitOutcome):
            return scans
        joined_note = store.note(JOIN)
        if joined_note is None:
            self._end(source, JOIN, parts[0], self._join)
            joined_note = store.note(JOIN)
        if joined_note is None or joined_note.fault or not _same_file([*scans.values(), joined_note]):
            return self._whole(source)
        merged = Joined.read(store)
        records = self.cut.plan_records(source, merged.sha256, merged.spans)
        cuts = self._remaining_steps(
            source, store, "cut", [part for part in parts if merged.span_indices(part, records)]
        )
        if isinstance(cuts, SplitOutcome):
            return cuts
        if not _same_file([joined_note, *cuts.values()]):
            return self._whole(source)
        return self._assemble(source, store, merged, records, [*scans.values(), joined_note], cuts)

    def _remaining_steps(
        self, source: SourceRef, store: PartStore, step: PartStep, parts: Sequence[Part]
    ) -> dict[int, StepNote] | SplitOutcome:
        """Return the notes of a step of all parts, or what comes instead: steps left to do, or the source whole."""
        notes = {part.number: store.note(step, part.number) for part in parts}
        ended = {part_index: note for part_index, note in notes.items() if note is not None}
        lost = next((note.lost for note in ended.values() if note.lost), None)
        if lost is not None:
            return SplitOutcome(failed_source(source, "worker", lost), in_parts=True)
        if any(note.fault for note in ended.values()):
            return self._whole(source)
        remaining = tuple(PartTask(source, step, part) for part in parts if notes[part.number] is None)
        return SplitOutcome(parts=remaining) if remaining else ended

    def _whole(self, source: SourceRef) -> SplitOutcome:
        return SplitOutcome(self.cut(source), in_parts=True)

    def _assemble(
        self,
        source: SourceRef,
        store: PartStore,
        merged: Joined,
        records: Sequence[Record],
        before: Sequence[StepNote],
        cuts: dict[int, StepNote],
    ) -> SplitOutcome:
        cut_records = {
            record.part: record
            for note in cuts.values()
            for record in source_summary(note.found["summary"]).records
        }
        if sum(record.clip_bytes for record in cut_records.values()) > most_bytes(
            merged.source_bytes, self.cut.config.probe
        ):
            return self._whole(source)  # it says which clips are left out
        arrays: dict[str, NDArray[Any]] = {}
        for part_index in sorted(cuts):
            arrays |= store.arrays("cut", part_index)
        if arrays:
            self.cut.ledger.blobs.write_arrays(arrays_name(source, self.cut.fingerprint), arrays)
        notes = [*before, *cuts.values()]
        summary = SourceSummary(
            tuple(cut_records.get(record.part, record) for record in records),
            sum(note.cpu_s for note in notes),
            merged.tags,
            merged.size.width * merged.size.height * float(merged.timeline.times_s[-1]),
            sum(note.seconds for note in notes),
            dict(ADDED) or None,
            dict(sum_operations(note.operation_s for note in notes)),
        )
        return SplitOutcome(summary, in_parts=True)

    def _end(
        self,
        source: SourceRef,
        step: str,
        part: Part,
        function: Callable[[BinaryIO, SourceRef, Part], Found],
    ) -> str | None:
        """Do a step and record its end; return why the source has to stay whole, or None."""
        # What the part is called: in progress notes, and in errors.
        store, part_index = self._store(source, part.count), part.number
        began = time.monotonic()
        label = f"{step} of part {part_index + 1} of {part.count}" if step != JOIN else "parts joined"
        identity = f"{source_id(source)}-{step}-{part_index}"
        try:
            # The step itself, on a file that must not change meanwhile.
            with self._open_source(source) as (file, state):
                size = source.size // part.count if step != JOIN else source.size
                noting = note_progress(
                    file, self.cut.ledger, identity, source.uri, size, part=label, begin=part_index * size
                )
                with noting as watched, measure_operations() as operation_s:
                    note_values, arrays = function(watched, source, part)
                if file_state(file) is not None and _texts(file_state(file)) != state:
                    raise SourceError("changed while it was read")
        except Exception as error:  # noqa: BLE001 - those that are no fault of the source are raised again
            fault = fault_of(error)[1]
            store.end(step, part_index, StepNote(fault=fault))
            return fault
        # A whole step is noted with its cost, so that a later run goes on behind it.
        spent = StepNote(
            cpu_s=sum(operation_s.values()),
            seconds=time.monotonic() - began,
            operation_s=operation_s,
            file=state,
            found=note_values,
        )
        store.end(step, part_index, spent, arrays)
        return None

    def _scan(self, file: BinaryIO, source: SourceRef, part: Part) -> Found:
        store = self._store(source, part.count)
        signals = scan_part(
            file, self.cut.config, part, partial(keep_clips, store, part.number), source.segments
        )
        return signals.values(), signals.arrays()

    def _join(self, file: BinaryIO, source: SourceRef, part: Part) -> Found:
        merged = join(
            file, self.cut.config, part.count, self._store(source, part.count), SOUND_S, source.segments
        )
        return merged.values(), merged.arrays()

    def _cut(self, file: BinaryIO, source: SourceRef, part: Part) -> Found:
        store = self._store(source, part.count)
        merged = Joined.read(store).with_smart(file, self.cut.config.cut.max_bits)
        line = merged.timeline
        records = self.cut.plan_records(source, merged.sha256, merged.spans)
        ahead = PartClips(
            store, part.number, merged.firsts, line, merged.size, merged.smart, merged.packets, merged.bars
        )
        arrays: dict[str, NDArray[Any]] = {}
        cut_records: list[Record] = []
        to_cut = [(merged.spans[index], records[index]) for index in merged.span_indices(part, records)]
        # Where clips lie ready only their sound is read; the others have a decoder of their own.
        for _, run in groupby(to_cut, lambda pair: pair[0] in ahead):
            spans, planned = zip(*run, strict=True)
            near_s = float(line.times_s[spans[0].first]) - SOUND_S
            entry = Entry(near_s, merged.begin_pts) if near_s > 0 else None
            cut_records += self.cut.cut_records(
                file, merged, merged.codec, spans, planned, arrays, ahead, entry
            )
        if failed := next((record for record in cut_records if record.state == "failed"), None):
            raise SourceError(f"a clip failed: {failed.reason}")
        return {"summary": to_json(SourceSummary(tuple(cut_records)))}, arrays

    @contextmanager
    def _open_source(self, source: SourceRef) -> Iterator[tuple[BinaryIO, tuple[str, ...]]]:
        """Open a source, and return its state as well, which tells whether other parts read the same."""
        try:
            storage, name = open_object(source.location, self.cut.storage, source.listed_in)
        except UsageError as error:  # that of an address in a list concerns its source alone
            raise SourceError(str(error)) from error
        with one_thread(), storage.open(name) as file, whole_reads(file):
            state = file_state(file)
            if state is None and (info := storage.stat(name)) is not None:
                yield file, (str(info.size), info.version)
            else:
                yield file, _texts(state)

    def _store(self, source: SourceRef, count: int) -> PartStore:
        # Parts that were cut before a score came would be joined with others that have it.
        scores = f"-{digest(ADDED)}" if ADDED else ""
        folder = f"{PARTS}{source_id(source)}-{self.cut.fingerprint}{scores}/"
        return PartStore(self.cut.ledger, folder, count)


def _texts(values: tuple[int, int] | None) -> tuple[str, ...]:
    return () if values is None else tuple(map(str, values))


def _same_file(notes: Sequence[StepNote]) -> bool:
    """Return whether all steps read a file in the same state."""
    return len({note.file for note in notes}) == 1
