"""Open work of a curation: sources to cut, clips to send through stages, and results that do not count."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.ledger.records import SourceSummary
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.state.clip_results import IDENTITY, ClipResults
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.tables.clips import clip_ids, to_records
from reelweave.curate.run.tables.columns import Mask, Rows, column, equal, filter_rows, mask_of
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.run.tables.results import there, to_results
from reelweave.curate.source_pass.cut_source import arrays_name
from reelweave.curate.source_pass.tasks import ClipTask, CurationTask, SourceTask
from reelweave.curate.sources.inputs import SourceRef


class Todo:
    """Tasks that are left, which follow from what the ledger and the workers of this run have done.

    Args:
        inputs: Inputs of the run.
        results: Clips of closed sources, and their results.
        stored: Where clips and their arrays lie.

    Attributes:
        redoes_older: Whether what an earlier revision of the code made is done anew: shards are written again, and
            clips are measured for scores that they lack, even if no threshold asks for them.
    """

    def __init__(self, inputs: RunInputs, results: ClipResults, stored: StoredClips) -> None:
        self._inputs, self._results, self._stored = inputs, results, stored
        self._closed = results.closed
        self.redoes_older = False

    def close_source(self, uri: str, summary: SourceSummary, fingerprint: str = "") -> None:
        """Add the summary of a source, whose arrays may have been written anew; see `ClosedSources.add`."""
        self._closed.add(uri, summary, fingerprint)
        name = arrays_name(self._inputs.sources[uri], fingerprint or self._inputs.cut.fingerprint)
        self._stored.arrays.forget(name)

    def redo_older(self) -> None:
        """Count as not done what an earlier revision of the code made; measure all scores that clips lack."""
        older = np.flatnonzero(self._closed.older).tolist()
        self._closed.drop([self._inputs.uris[index] for index in older])
        self.redoes_older = True
        self._results.forget_older()

    def forget_failures(self) -> None:
        """Count failed sources and clips as not done."""
        self._closed.drop(self._closed.failed_uris())
        self._results.forget_faults()

    def forget_lost(self, clips: Partitions) -> bool:
        """Count sources as not done whose kept clips are lost; return whether there are any."""
        staged = self._stored.staged_ids()
        lost: list[str] = []
        for table in clips:
            remaining = filter_rows(table.select(IDENTITY), equal(table, "state", "kept"))
            lost += (self._inputs.uris[index] for index in self._find_lost(remaining, staged).tolist())
        if lost:
            self._closed.drop(lost)
        return bool(lost)

    def tasks(self, chosen: Set[str]) -> list[CurationTask]:
        """Return what is left to do before deduplication for the chosen URIs.

        Large sources come first: one that came last would run alone.
        """
        inputs = self._inputs
        unclosed = self._closed.unclosed_uris() & inputs.sources.keys()
        waiting = [inputs.sources[uri] for uri in unclosed if uri in chosen]
        tasks: list[CurationTask] = [
            self._source_task(source)
            for source in sorted(waiting, key=lambda source: (-source.size, source.uri))
        ]
        if not inputs.beside:
            return tasks
        selected, staged = inputs.select_sources(chosen), self._stored.staged_ids()
        self._results.place()
        for partition in range(self._closed.partitions):
            clips = self._results.clips_of(partition, selected)
            clips = filter_rows(clips, self.select_lacking(partition, clips, inputs.beside))
            lost = self._find_lost(clips, staged)
            tasks += (self._source_task(inputs.listed[index]) for index in lost.tolist())
            remaining = filter_rows(clips, ~np.isin(column(clips, "source").to_numpy(), lost))
            tasks += self._clip_tasks(partition, remaining, inputs.beside)
        return tasks

    def later_tasks(self, clips: Partitions) -> tuple[int, Iterator[ClipTask]]:
        """Return what is left to do for kept clips after deduplication: a number of tasks, made one by one."""
        later = self._inputs.later
        if not later:
            return 0, iter(())
        self._results.place()
        lacking = [self.select_lacking(partition, table, later) for partition, table in enumerate(clips)]

        def tasks() -> Iterator[ClipTask]:
            for partition, mask in enumerate(lacking):
                if mask.any():
                    yield from self._clip_tasks(partition, filter_rows(clips.read(partition), mask), later)

        return sum(int(mask.sum()) for mask in lacking), tasks()

    def select_lacking(self, partition: int, clips: pa.Table, stages: Sequence[ClipStage]) -> Mask:
        """Return which clips no threshold rejects that lack a stage."""
        mask = equal(clips, "state", "kept")
        results = self._results.find(partition, filter_rows(clips.select(IDENTITY), mask))
        lacking = np.zeros(int(mask.sum()), bool)
        for stage in stages:
            lacking |= ~there(results[stage.name])
        mask[mask] = lacking
        if lacking.any():
            some = {name: filter_rows(table, lacking) for name, table in results.items()}
            mask[mask] = equal(self._results.judge(filter_rows(clips, mask), some), "state", "kept")
        return mask

    def select_older(self, partition: int, clips: pa.Table, stage: ClipStage) -> Mask:
        """Return which clips that no threshold rejects have a result by an earlier revision of a stage's code alone."""
        older = self._results.older_ids(stage)
        if not len(older):
            return np.zeros(len(clips), bool)
        results = self._results.find(partition, clips)
        mask = mask_of(pc.is_in(column(results[stage.name], "id"), value_set=older))
        some = {name: filter_rows(table, mask) for name, table in results.items()}
        mask[mask] = equal(self._results.judge(filter_rows(clips, mask), some), "state", "kept")
        return mask

    def _find_lost(self, clips: pa.Table, staged: TextPlaces) -> Rows:
        """Return the indices of sources of which a clip is neither staged nor in a shard."""
        at_hand = self._stored.are_at_hand(clips, staged)
        return np.unique(column(clips, "source").to_numpy()[~at_hand])

    def _clip_tasks(self, partition: int, clips: pa.Table, stages: Sequence[ClipStage]) -> Iterator[ClipTask]:
        """Yield each clip with all that is known of it, and with the stages left to do."""
        columns = {name: to_results(table) for name, table in self._results.find(partition, clips).items()}
        for row, (task, location) in enumerate(
            zip(self._plain_tasks(clips), self._stored.places_of(clip_ids(clips)), strict=True)
        ):
            results = {
                name: result_of_clip
                for name, column in columns.items()
                if (result_of_clip := column[row]) is not None
            }
            todo = tuple(stage.name for stage in stages if stage.name not in results)
            yield replace(task, found=results, todo=todo, place=location)

    def _plain_tasks(self, clips: pa.Table) -> Iterator[ClipTask]:
        """Yield a task for each clip, before any result and with nothing to do."""
        source_indices = column(clips, "source").to_pylist()
        for index, record in zip(source_indices, to_records(clips, self._inputs.uris), strict=True):
            source = self._inputs.listed[index]
            caption = source.caption_of(record.segment)
            tags = self._closed.tags(index)
            yield ClipTask(
                record,
                caption,
                source.listed_in,
                tags,
                sidecars=source.sidecars,
                captions=source.captions_of(record.segment),
                attributes=source.attributes_of(record.segment),
            )

    def _source_task(self, source: SourceRef) -> SourceTask:
        return SourceTask(source, tuple(stage.name for stage in self._inputs.beside))
