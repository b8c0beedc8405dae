"""Verdict of a curation: the state of every span, by its own scores and beside all other clips."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup import DedupClips, Duplicate, Vectors, balance, dedup
from reelweave.curate.dedup.types import Surplus
from reelweave.curate.dedup.vector_file import VectorFile
from reelweave.curate.ledger.records import Record
from reelweave.curate.run.reference_sets import ReferenceSets
from reelweave.curate.run.stages.copies import Copies
from reelweave.curate.run.stages.footage import MatchMany
from reelweave.curate.run.state.clip_results import IDENTITY, ClipResults
from reelweave.curate.run.state.dedup_input import dedup_clips, model_vectors
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.tables.clips import CLIPS, by_span, clip_ids, concat_clips, from_records
from reelweave.curate.run.tables.columns import column, equal, filter_rows, mask_of, places_in
from reelweave.curate.run.tables.compare import (
    BALANCE,
    describe_crowded,
    taken_down,
    without_copies,
    without_duplicates,
    without_known,
    without_surplus,
)
from reelweave.curate.run.tables.kept import KeptClips, is_kept
from reelweave.curate.run.tables.partitions import Partitions, partition_of
from reelweave.curate.takedown.takedown import empty_record
from reelweave.loader.errors import RunError


@dataclass(frozen=True)
class FinishedVerdict:
    """Verdict after later stages.

    Attributes:
        clips: Every span in its state.
        is_complete: Whether it is final: no clip was dropped as a duplicate of one that a later stage failed, or for
            the cap of a concept while one failed.
        failed: (source, part) of the clips that a later stage failed.
    """

    clips: Partitions
    is_complete: bool
    failed: Set[tuple[int, int]] = frozenset()


class Verdict:
    """Decides the state of every span, in partitions.

    Args:
        inputs: Inputs of the run.
        results: Clips of closed sources, and their results.
        stored: Where clips and their arrays lie.
        copies: Choice among clips of sources of the same bytes.
        references: Other datasets, with the thresholds of duplicates.

    Attributes:
        copies: As given, for what it notes.
        notes: Sentences on clips that the last decision kept against a cap.
    """

    def __init__(
        self,
        inputs: RunInputs,
        results: ClipResults,
        stored: StoredClips,
        copies: Copies,
        references: ReferenceSets,
    ) -> None:
        self._inputs, self._results, self._stored = inputs, results, stored
        self.notes: tuple[str, ...] = ()
        self.copies, self._references, self._dedup = copies, references, references.config

    def decide(
        self, chosen: Set[str], failed: Set[tuple[int, int]], match: MatchMany | None = None
    ) -> Partitions:
        """Return every span, and every source that gave none, with its state before later stages.

        Rows are sorted by source and span. Partitions are judged one after the other; what clips of different ones
        have in common is found over few columns of all kept clips.

        Args:
            chosen: URIs of the sources that count.
            failed: (source, part) of clips that a later stage is known to fail.
            match: Comparison of many pairs at once; None compares one after the other, here.
        """
        uris = self._inputs.uris
        self._results.place()
        clips = self._empty_partitions()
        selected, parts = self._inputs.select_sources(chosen), []
        # Each partition by itself: thresholds, take-downs, failures.
        for partition in range(clips.count):
            table = self._judge_alone(partition, self._results.clips_of(partition, selected), failed)
            clips.add(partition, table)
            parts.append(self._kept_clips(table))
        # Among kept clips of all partitions: first spans of the same bytes under several names.
        remaining = KeptClips.concat(parts)
        twins = self.copies.among(remaining, clips)
        copies = np.flatnonzero(twins >= 0)
        copied = (
            remaining.partitions_of(copies),
            remaining.rows[copies].astype(np.int64),
            remaining.sources[twins[copies]],
        )
        remaining = remaining.where(twins < 0)
        del twins
        # Then what other datasets have, then near duplicates among what is left.
        outside: Mapping[str, tuple[str, Duplicate]] = {}
        if self._references.uris:
            outside = self._references.find_known(self._dedup_clips(remaining, clips))
            remaining = remaining.where(
                ~mask_of(pc.is_in(remaining.keys, value_set=pa.array(list(outside), pa.string())))
            )
        compared = self._dedup_clips(remaining, clips, match)
        duplicates = dedup(compared, self._dedup)
        self.copies.note_duplicates(remaining, clips, duplicates)
        # Last the cap of each concept, which copies shall not fill.
        surplus: Mapping[str, Surplus] = {}
        if self._dedup.balance.max_clips is not None:
            surplus, old_beyond = balance(compared, duplicates, self._dedup.balance, self._dedup.device)
            self.notes = describe_crowded(old_beyond, self._dedup.balance.max_clips)
        del remaining, compared
        if not (duplicates or outside or surplus or len(copies)):
            return clips
        # Write the reasons into the partitions, of which one at a time is in memory.
        for partition, table in enumerate(clips):
            in_partition = copied[0] == partition
            kept_uris = [uris[index] for index in copied[2][in_partition].tolist()]
            changed = without_copies(table, copied[1][in_partition], kept_uris)
            changed = without_duplicates(without_known(changed, outside), duplicates)
            clips.replace(partition, without_surplus(changed, surplus))
        return clips

    def finish(self, clips: Partitions) -> FinishedVerdict:
        """Return the verdict with the results of later stages: captions, or faults.

        Args:
            clips: Verdict before later stages, from `decide`.
        """
        if not self._inputs.later:
            return FinishedVerdict(clips, is_complete=True)
        self._results.place()
        finished = self._empty_partitions()
        for partition, table in enumerate(clips):
            finished.add(partition, self._results.judge(table, self._results.find(partition, table)))
        failed: set[tuple[int, int]] = set()
        gone: list[pa.Array] = []
        for before, after in zip(clips, finished, strict=True):
            changed = filter_rows(after, mask_of(pc.not_equal(after.column("state"), before.column("state"))))
            spans = (column(changed, name).to_pylist() for name in ("source", "part"))
            failed |= set(zip(*spans, strict=True))
            gone.append(column(changed, "key"))
        keys = pa.concat_arrays(gone)
        # A clip that a later stage failed leaves its concept room for another one.
        is_complete = not len(keys) or not any(
            (places_in(column(table, "duplicate_of"), keys) >= 0).any()
            or equal(table, "stage", BALANCE).any()
            for table in clips
        )
        return FinishedVerdict(finished, is_complete, failed)

    def _judge_alone(self, partition: int, clips: pa.Table, failed: Set[tuple[int, int]]) -> pa.Table:
        """Return the clips of a partition in their state before they are compared with each other."""
        inputs, results = self._inputs, self._results
        parts = [results.judge(clips, results.find(partition, clips, inputs.earlier))]
        if failed:
            spans = zip(column(clips, "source").to_pylist(), column(clips, "part").to_pylist(), strict=True)
            known_to_fail = np.array([span in failed for span in spans], bool)
            some = filter_rows(clips, known_to_fail)
            parts = [
                filter_rows(parts[0], ~known_to_fail),
                results.judge(some, results.find(partition, some)),
            ]
        index_of = results.closed.numbers
        removed = [
            empty_record(Record(uri), inputs.take_downs.sources[uri])
            for uri in inputs.removed
            if partition_of(index_of[uri]) == partition
        ]
        clips = by_span(concat_clips([*parts, from_records(removed, index_of)]))
        return taken_down(clips, inputs.take_downs, index_of)

    def _kept_clips(self, clips: pa.Table) -> KeptClips:
        """Return the kept clips of one partition as they are compared with those of all."""
        remaining = filter_rows(clips.select(IDENTITY), is_kept(clips))
        ids = clip_ids(remaining)
        footage = np.full(len(ids), -1, np.int64)
        if self._dedup.perceptual.enabled:
            footage = self._stored.find_arrays(remaining)
        return KeptClips.of(clips, self._stored.are_in_shards(ids), footage)

    def _empty_partitions(self) -> Partitions:
        """Return partitions for the verdict on all clips."""
        count = self._results.closed.partitions
        return Partitions(count, CLIPS, count > 1)

    def _dedup_clips(
        self, clips: KeptClips, tables: Partitions, match: MatchMany | None = None
    ) -> DedupClips:
        """Return kept clips of tables as `reelweave.curate.dedup` compares them."""
        vectors = self._model_vectors(clips, tables)
        return dedup_clips(clips, self._inputs.uris, self._stored.arrays, vectors, match)

    def _model_vectors(self, clips: KeptClips, tables: Partitions) -> Vectors:
        stage, results = self._inputs.vectors, self._results
        if stage is None or not len(clips):
            return Vectors.from_file(np.full(len(clips), -1, np.int32), VectorFile())
        try:
            return model_vectors(
                clips, tables, lambda partition, table: results.find(partition, table)[stage]
            )
        except RunError as error:
            raise RunError(f"{stage}: {error}; all clips of a run need one size") from error
