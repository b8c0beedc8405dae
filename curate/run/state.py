"""State of a curation: all that is known of its sources and clips, and the tasks that are left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.config import CurateConfig, config_digest, earlier_digests
from reelweave.curate.dedup import DedupClips, Duplicate, Vectors, dedup
from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.dedup.vector_file import VectorFile
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, SourceSummary
from reelweave.curate.run.clip_arrays import ClipArrays
from reelweave.curate.run.dedup_input import dedup_clips, model_vectors
from reelweave.curate.run.reference_sets import ReferenceSets
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.copies import Copies
from reelweave.curate.run.stages.footage import MatchMany
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.stages.model_stages import judge_of
from reelweave.curate.run.stages.text_embed_stage import TEXT_EMBED
from reelweave.curate.run.tables.clips import CLIPS, by_span, clip_ids, concat_clips, from_records, to_records
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import Mask, column, equal, filter_rows, mask_of, take_rows, texts_of
from reelweave.curate.run.tables.compare import (
    taken_down,
    without_copies,
    without_duplicates,
    without_known,
)
from reelweave.curate.run.tables.judge import judge_clips
from reelweave.curate.run.tables.kept import KeptClips, is_kept
from reelweave.curate.run.tables.partitions import Partitions, partition_of
from reelweave.curate.run.tables.places import places_of
from reelweave.curate.run.tables.results import StageResults, packed_arrays, there, to_results
from reelweave.curate.run.tables.samples import samples_of, vector_column
from reelweave.curate.source_pass.cut_source import STAGE as CUT
from reelweave.curate.source_pass.cut_source import CutSource, arrays_name, arrays_of
from reelweave.curate.source_pass.tasks import ClipPlace, ClipTask, CurationTask, SourceTask
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import TakeDowns, empty_record
from reelweave.loader.dataset import Dataset

Results = Mapping[str, pa.Table]
"""Results of stages by name, a row for each clip; see `reelweave.curate.run.tables.results`."""


_IDENTITY = ("source", "segment", "key", "sha256")
"""Columns that say whose a clip is, of which segment, and of which bytes."""


class CurationState:
    """Everything known of every source and clip, from the ledger, the dataset and the workers of this run.

    Clips are rows of tables; see `reelweave.curate.run.tables`.

    Args:
        config: Configuration of all stages.
        ledger: Entries of this run and of earlier ones.
        sources: All sources of the input.
        dataset: The present revision; None where nothing is published.
        stages: Stages over clips that the configuration asks for, from
            `reelweave.curate.run.stages.model_stages.model_stages`.
        models: Identities of their models, from `reelweave.curate.run.stages.model_stages.model_digests`.

    Attributes:
        config: See above.
        ledger: See above.
        dataset: See above.
        sources: Sources that were not taken down, by URI.
        listed: All sources, sorted by URI; clips name them by their place here.
        closed: Clips of closed sources.
        cut: Function that cuts one source.
        earlier_cuts: Revision by digest of the same configuration under earlier revisions of the code.
        measures_all: Whether clips are measured for scores that they lack, even if no threshold asks for them.
        writes_all: Whether shards that an earlier revision of the code wrote are written again.
        model_stages: Stages over clips as the configuration asks for them, by name.
        stages: The same as runners call them.
        earlier: Those before deduplication.
        later: Those after it.
        beside: Those that run while sources are cut: the earlier ones, or all.
        copies: Choice among clips of sources of the same bytes.
        places: TextPlaces of the clips of the present revision, see `places_of`.
    """

    def __init__(
        self,
        config: CurateConfig,
        ledger: Ledger,
        sources: Iterable[SourceRef],
        dataset: Dataset | None,
        stages: Sequence[ModelStage],
        models: Mapping[str, str],
    ) -> None:
        self.config, self.ledger, self.dataset = config, ledger, dataset
        by_uri = {source.uri: source for source in sources}
        removals = dataset.manifest.removals if dataset is not None else ()
        self._down = TakeDowns(tuple(removals)).of_older_names(by_uri)
        self.listed = [by_uri[uri] for uri in sorted(by_uri)]
        self._uris = [source.uri for source in self.listed]
        self._removed = [uri for uri in self._uris if uri in self._down.sources]
        self.sources = {uri: source for uri, source in by_uri.items() if uri not in self._down.sources}
        source_config = config.source_stage()
        self.cut = CutSource(source_config, config.storage, ledger, config_digest(source_config), self._down)
        self.wanted = judge_of(stages, config)
        self.stages = [stage.clip_stage(ledger, models, self.wanted) for stage in stages]
        self.model_stages = {stage.name: stage for stage in stages}
        self._vectors = next((stage.name for stage in stages if stage.makes_vectors), None)
        self.earlier = [stage for stage in self.stages if not stage.after_dedup]
        self.later = [stage for stage in self.stages if stage.after_dedup]
        self.beside = self.stages if config.run.caption_while_cutting else self.earlier
        self.earlier_cuts = earlier_digests(source_config)
        digests = set(ledger.entries.fingerprints(CUT))
        earlier = [digest for digest in self.earlier_cuts if digest in digests]
        self.closed = ClosedSources(ledger, self.cut.fingerprint, self.listed, earlier)
        self.measures_all = self.writes_all = False
        self._results = {
            stage.name: StageResults(
                ledger, stage.name, stage.fingerprint, self.closed.partitions, stage.earlier
            )
            for stage in self.stages
        }
        self.places = places_of(dataset)
        self._place_ids = TextPlaces(column(self.places, "id"))
        self._arrays = ClipArrays(ledger)
        self.copies = Copies(self.listed, config.captions, config.storage, dataset)

    def close_source(self, uri: str, summary: SourceSummary, fingerprint: str = "") -> None:
        """Add the summary of a source, whose arrays may have been written anew; see `ClosedSources.add`."""
        self.closed.add(uri, summary, fingerprint)
        self._arrays.forget(arrays_name(self.sources[uri], fingerprint or self.cut.fingerprint))

    def add_results(self, task: ClipTask) -> None:
        """Add the results that workers of this run made for a task."""
        for stage in self.stages:
            if stage.name in task.made:
                self._results[stage.name].add(stage.identity(task), task.found[stage.name])

    def redo_older(self) -> None:
        """Count as not done what an earlier revision of the code made; measure all scores that clips lack."""
        older = np.flatnonzero(self.closed.older).tolist()
        self.closed.drop([self._uris[index] for index in older])
        self.measures_all = self.writes_all = True
        for results in self._results.values():
            results.forget_older()

    def older_results(self, partition: int, clips: pa.Table, stage: ClipStage) -> Mask:
        """Return which clips that no threshold rejects have a result by an earlier revision of a stage's code alone."""
        older = self._results[stage.name].older
        if not len(older):
            return np.zeros(len(clips), bool)
        results = self._known(partition, clips)
        mask = mask_of(pc.is_in(column(results[stage.name], "id"), value_set=older))
        some = {name: filter_rows(table, mask) for name, table in results.items()}
        mask[mask] = equal(self._judged(filter_rows(clips, mask), some), "state", "kept")
        return mask

    def forget_failures(self) -> None:
        """Count failed sources and clips as not done."""
        self.closed.drop(self.closed.failed())
        for results in self._results.values():
            results.forget_faults()

    def forget_lost(self, clips: Partitions) -> bool:
        """Count sources as not done whose kept clips are lost; return whether there are any."""
        staged = self.staged()
        lost: list[str] = []
        for table in clips:
            remaining = filter_rows(table.select(_IDENTITY), equal(table, "state", "kept"))
            source_indices = np.unique(
                column(remaining, "source").to_numpy()[~self.at_hand(remaining, staged)]
            )
            lost += (self._uris[index] for index in source_indices.tolist())
        if lost:
            self.closed.drop(lost)
        return bool(lost)

    def tasks(self, chosen: Set[str]) -> list[CurationTask]:
        """Return what is left to do before deduplication for the chosen URIs.

        Large sources come first: one that came last would run alone.
        """
        unclosed = self.closed.unclosed() & self.sources.keys()
        waiting = [self.sources[uri] for uri in unclosed if uri in chosen]
        tasks: list[CurationTask] = [
            self._source_task(source)
            for source in sorted(waiting, key=lambda source: (-source.size, source.uri))
        ]
        if not self.beside:
            return tasks
        selected, staged = self.numbered(chosen), self.staged()
        self.place_results()
        for partition in range(self.closed.partitions):
            clips = self._clips(partition, selected)
            clips = filter_rows(clips, self.todo(partition, clips, self.beside))
            source_indices = column(clips, "source").to_numpy()
            lost = np.unique(source_indices[~self.at_hand(clips, staged)])
            tasks += (self._source_task(self.listed[index]) for index in lost.tolist())
            tasks += self._clip_tasks(
                partition, filter_rows(clips, ~np.isin(source_indices, lost)), self.beside
            )
        return tasks

    def later_tasks(self, clips: Partitions) -> tuple[int, Iterator[ClipTask]]:
        """Return what is left to do for kept clips after deduplication: a number of tasks, made one by one."""
        if not self.later:
            return 0, iter(())
        self.place_results()
        todo = [self.todo(partition, table, self.later) for partition, table in enumerate(clips)]

        def tasks() -> Iterator[ClipTask]:
            for partition, mask in enumerate(todo):
                if mask.any():
                    yield from self._clip_tasks(
                        partition, filter_rows(clips.read(partition), mask), self.later
                    )

        return sum(int(mask.sum()) for mask in todo), tasks()

    def todo(self, partition: int, clips: pa.Table, stages: Sequence[ClipStage]) -> Mask:
        """Return which clips no threshold rejects that lack a stage."""
        todo = equal(clips, "state", "kept")
        results = self._known(partition, filter_rows(clips.select(_IDENTITY), todo))
        lacking = np.zeros(int(todo.sum()), bool)
        for stage in stages:
            lacking |= ~there(results[stage.name])
        todo[todo] = lacking
        if lacking.any():
            some = {name: filter_rows(table, lacking) for name, table in results.items()}
            todo[todo] = equal(self._judged(filter_rows(clips, todo), some), "state", "kept")
        return todo

    def _clip_tasks(self, partition: int, clips: pa.Table, stages: Sequence[ClipStage]) -> Iterator[ClipTask]:
        """Yield each clip with all that is known of it, and with the stages left to do."""
        columns = {name: to_results(table) for name, table in self._known(partition, clips).items()}
        for row, (task, location) in enumerate(
            zip(self._plain_tasks(clips), self.places_of(clip_ids(clips)), strict=True)
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
        for index, record in zip(source_indices, to_records(clips, self._uris), strict=True):
            source = self.listed[index]
            caption = source.caption_of(record.segment)
            tags = self.closed.tags(index)
            yield ClipTask(record, caption, source.listed_in, tags, sidecars=source.sidecars)

    def places_of(self, ids: pa.Array) -> Iterator[ClipPlace | None]:
        """Yield the place of each clip in the present revision, by identity of its bytes."""
        for row in self._placed(ids).to_pylist():
            yield None if row["id"] is None else ClipPlace(row["shard"], row["offset"], row["size"])

    def _source_task(self, source: SourceRef) -> SourceTask:
        return SourceTask(source, tuple(stage.name for stage in self.beside))

    def _known(
        self, partition: int, clips: pa.Table, stages: Sequence[ClipStage] | None = None
    ) -> dict[str, pa.Table]:
        """Return the results of all stages, or of some and those that they build on, for clips of a partition."""
        results: dict[str, pa.Table] = {}
        for stage in self.stages if stages is None else stages:
            results[stage.name] = self._results[stage.name].find(
                partition, stage.identity.of_clips(clips, results, self.closed)
            )
        return results

    def place_results(self) -> None:
        """Put results that came since the last call beside their clips."""

        def identities(at: int) -> Iterator[pa.Array]:
            for partition in range(self.closed.partitions):
                clips = self.closed.clips(partition).select(_IDENTITY)
                results = self._known(partition, clips, self.stages[:at])
                yield self.stages[at].identity.of_clips(clips, results, self.closed)

        for at, stage in enumerate(self.stages):
            self._results[stage.name].place(self.closed.version, partial(identities, at))

    def _placed(self, ids: pa.Array) -> pa.Table:
        return take_rows(self.places, self._place_ids.find(ids))

    def staged(self) -> TextPlaces:
        """Return the identities of all staged clips."""
        return TextPlaces(texts_of(self.ledger.blobs.staged_clips()))

    def at_hand(self, clips: pa.Table, staged: TextPlaces) -> Mask:
        """Return which clips are staged or lie in a shard."""
        ids = clip_ids(clips)
        return (staged.find(ids) >= 0) | (self._place_ids.find(ids) >= 0)

    def _clips(self, partition: int, selected: Mask) -> pa.Table:
        """Return the clips of a partition's sources that a mask over all sources wants."""
        clips = self.closed.clips(partition)
        return filter_rows(clips, selected[column(clips, "source").to_numpy()])

    def numbered(self, chosen: Set[str]) -> Mask:
        """Return which sources are chosen and were not taken down."""
        return np.array([uri in chosen and uri in self.sources for uri in self._uris], bool)

    def verdict(
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
        self.place_results()
        clips = self._empty()
        selected, parts = self.numbered(chosen), []
        for partition in range(clips.count):
            table = self._own_verdict(partition, self._clips(partition, selected), failed)
            clips.add(partition, table)
            parts.append(self._compared(table))
        remaining = KeptClips.joined(parts)
        twins = self.copies.among(remaining, clips)
        copies = np.flatnonzero(twins >= 0)
        copied = (
            remaining.partitions_of(copies),
            remaining.rows[copies].astype(np.int64),
            remaining.sources[twins[copies]],
        )
        remaining = remaining.where(twins < 0)
        del twins
        outside: Mapping[str, tuple[str, Duplicate]] = {}
        if self.config.dedup.evaluation or self.config.dedup.older:
            outside = ReferenceSets.of(self.config).known(self._dedup_clips(remaining, clips))
            remaining = remaining.where(
                ~mask_of(pc.is_in(remaining.keys, value_set=pa.array(list(outside), pa.string())))
            )
        duplicates = dedup(self._dedup_clips(remaining, clips, match), self.config.dedup)
        self.copies.note_duplicates(remaining, clips, duplicates)
        del remaining
        if not (duplicates or outside or len(copies)):
            return clips
        for partition, table in enumerate(clips):
            in_partition = copied[0] == partition
            uris = [self._uris[index] for index in copied[2][in_partition].tolist()]
            changed = without_copies(table, copied[1][in_partition], uris)
            changed = without_duplicates(without_known(changed, outside), duplicates)
            clips.replace(partition, changed)
        return clips

    def _own_verdict(self, partition: int, clips: pa.Table, failed: Set[tuple[int, int]]) -> pa.Table:
        """Return the clips of a partition in their state before they are compared with each other."""
        parts = [self._judged(clips, self._known(partition, clips, self.earlier))]
        if failed:
            spans = zip(column(clips, "source").to_pylist(), column(clips, "part").to_pylist(), strict=True)
            known_to_fail = np.array([span in failed for span in spans], bool)
            some = filter_rows(clips, known_to_fail)
            parts = [filter_rows(parts[0], ~known_to_fail), self._judged(some, self._known(partition, some))]
        index_of = self.closed.numbers
        removed = [
            empty_record(Record(uri), self._down.sources[uri])
            for uri in self._removed
            if partition_of(index_of[uri]) == partition
        ]
        return taken_down(
            by_span(concat_clips([*parts, from_records(removed, index_of)])), self._down, index_of
        )

    def _compared(self, clips: pa.Table) -> KeptClips:
        """Return the kept clips of one partition as they are compared with those of all."""
        remaining = filter_rows(clips.select(_IDENTITY), is_kept(clips))
        ids = clip_ids(remaining)
        footage = np.full(len(ids), -1, np.int64)
        if self.config.dedup.perceptual.enabled:
            footage = self._arrays.find(ids, self._read_arrays(remaining))
        return KeptClips.of(clips, self._place_ids.find(ids) >= 0, footage)

    def _empty(self) -> Partitions:
        """Return partitions for the verdict on all clips."""
        return Partitions(self.closed.partitions, CLIPS, self.closed.partitions > 1)

    def _judged(self, clips: pa.Table, results: Results) -> pa.Table:
        return judge_clips(clips, results, self.config.filters, self.config.shard, self.wanted.scores)

    def finished(self, clips: Partitions) -> Partitions:
        """Return clips of the verdict with the results of later stages: their captions, or faults."""
        if not self.later:
            return clips
        self.place_results()
        finished = self._empty()
        for partition, table in enumerate(clips):
            finished.add(partition, self._judged(table, self._known(partition, table)))
        return finished

    def _dedup_clips(
        self, clips: KeptClips, tables: Partitions, match: MatchMany | None = None
    ) -> DedupClips:
        """Return kept clips of tables as `reelweave.curate.dedup` compares them."""
        return dedup_clips(clips, self._uris, self._arrays, self._model_vectors(clips, tables), match)

    def _model_vectors(self, clips: KeptClips, tables: Partitions) -> Vectors:
        stage = self._vectors
        if stage is None or not len(clips):
            return Vectors.placed(np.full(len(clips), -1, np.int32), VectorFile())
        return model_vectors(clips, tables, lambda partition, table: self._known(partition, table)[stage])

    def samples(self, partition: int, clips: pa.Table) -> pa.Table:
        """Return the kept clips of a partition as samples of shards; see `reelweave.curate.run.tables.samples`."""
        clips = filter_rows(clips, equal(clips, "state", "kept"))
        locations = self._placed(clip_ids(clips))
        needed = {self._vectors, TEXT_EMBED} & self._results.keys()
        results = self._known(partition, clips) if needed else {}
        return samples_of(
            clips, self.listed, locations, self._embeddings(clips, results), results.get(TEXT_EMBED)
        )

    def _embeddings(self, clips: pa.Table, results: Results) -> pa.Array:
        """Return the video embedding of each clip, of the backend that the configuration names."""
        if (stage := self._vectors) is not None:
            return vector_column(*packed_arrays(results[stage]))
        if self.config.embed.backend == "none":
            return vector_column(np.zeros((len(clips), 1), np.float16), np.zeros(len(clips), bool))
        rows = self._arrays.find(clip_ids(clips), self._read_arrays(clips))
        return vector_column(self._arrays.stored(rows), rows >= 0)

    def _read_arrays(self, clips: pa.Table) -> list[str]:
        """Read the arrays of clips' sources; return the names under which they lie."""
        source_indices = np.unique(column(clips, "source").to_numpy()).tolist()
        ids = self.closed.ids.take(pa.array(source_indices, pa.int64())).to_pylist()
        names = [
            arrays_of(identity, self.closed.fingerprint(index))
            for identity, index in zip(ids, source_indices, strict=True)
        ]
        self._arrays.read(names)
        return names
