"""State of a curation: all that is known of its sources and clips, and the tasks that are left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.config import CurateConfig, fingerprint
from curate.dedup import DedupClips, ManyPairs, Vectors, dedup
from curate.dedup.fingerprint import Match
from curate.ledger import Ledger
from curate.records import Record, SourceSummary
from curate.run.clip_arrays import ClipArrays
from curate.run.reference_sets import known
from curate.run.stages.clip_stages import ClipStage
from curate.run.stages.footage import PAIRS_AT_ONCE, MatchMany
from curate.run.stages.model_stages import TEXT_EMBED, clip_stages, embedding_stage, judge
from curate.run.tables.clips import by_span, clip_ids, from_records, joined, to_records
from curate.run.tables.closed import ClosedSources
from curate.run.tables.columns import Mask, column, equal, kept, places_in, taken
from curate.run.tables.compare import qualities, taken_down, without_copies, without_duplicates, without_known
from curate.run.tables.judge import judged
from curate.run.tables.results import StageResults, packed_arrays, there, to_results
from curate.run.tables.samples import samples_of, vector_column
from curate.source_pass.cut_source import CutSource, arrays_name
from curate.source_pass.tasks import ClipPlace, ClipTask, CurationTask, SourceTask
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import TakeDowns, emptied
from loader.dataset import Dataset

Results = Mapping[str, pa.Table]
"""Results of stages by name, a row for each clip; see `curate.run.tables.results`."""


class CurationState:
    """Everything known of every source and clip, from the ledger, the dataset and the workers of this run.

    Clips are rows of tables; see `curate.run.tables`.

    Args:
        config: Configuration of all stages.
        ledger: Entries of this run and of earlier ones.
        sources: All sources of the input.
        dataset: The present revision; None where nothing is published.
        models: Identities from `curate.run.stages.model_files.model_digests`.

    Attributes:
        config: See above.
        ledger: See above.
        dataset: See above.
        sources: Sources that were not taken down, by URI.
        listed: All sources, sorted by URI; clips name them by their place here.
        closed: Clips of closed sources.
        cut: Function that cuts one source.
        stages: Stages over clips.
        earlier: Those before deduplication.
        later: Those after it.
        beside: Those that run while sources are cut: the earlier ones, or all.
        places: Places of the clips of the present revision, see `places_of`.
    """

    def __init__(
        self,
        config: CurateConfig,
        ledger: Ledger,
        sources: Iterable[SourceRef],
        dataset: Dataset | None,
        models: Mapping[str, str],
    ) -> None:
        self.config, self.ledger, self.dataset = config, ledger, dataset
        self._down = TakeDowns(tuple(dataset.manifest.removals) if dataset is not None else ())
        by_uri = {source.uri: source for source in sources}
        self.listed = [by_uri[uri] for uri in sorted(by_uri)]
        self._uris = [source.uri for source in self.listed]
        self._removed = [uri for uri in self._uris if uri in self._down.sources]
        self.sources = {uri: source for uri, source in by_uri.items() if uri not in self._down.sources}
        source_config = config.source_stage()
        self.cut = CutSource(source_config, config.storage, ledger, fingerprint(source_config), self._down)
        self.stages = clip_stages(config, ledger, models)
        self.earlier = [stage for stage in self.stages if not stage.after_dedup]
        self.later = [stage for stage in self.stages if stage.after_dedup]
        self.beside = self.stages if config.run.caption_while_cutting else self.earlier
        self.wanted = judge(config)
        self.closed = ClosedSources(ledger, self.cut.fingerprint, self.listed)
        self._results = {
            stage.name: StageResults(ledger, stage.name, stage.fingerprint) for stage in self.stages
        }
        self.places = places_of(dataset)
        self._arrays = ClipArrays(ledger)

    def close_source(self, uri: str, summary: SourceSummary) -> None:
        """Add the summary of a source, whose arrays may have been written anew."""
        self.closed.add(uri, summary)
        self._arrays.forget(self._arrays_name(self.sources[uri]))

    def add_results(self, task: ClipTask) -> None:
        """Add the results that workers of this run made for a task."""
        for stage in self.stages:
            if stage.name in task.made:
                self._results[stage.name].add(stage.identity(task), task.found[stage.name])

    def forget_failures(self) -> None:
        """Count failed sources and clips as not done."""
        clips = self.closed.clips()
        failed = np.unique(column(clips, "source").to_numpy()[equal(clips, "state", "failed")])
        self.closed.drop([self._uris[number] for number in failed.tolist()])
        for results in self._results.values():
            results.forget_faults()

    def forget_lost(self, clips: pa.Table) -> bool:
        """Count sources as not done whose kept clips are lost; return whether there are any."""
        left = kept(clips, equal(clips, "state", "kept"))
        lost = np.unique(column(left, "source").to_numpy()[~self._at_hand(left)])
        self.closed.drop([self._uris[number] for number in lost.tolist()])
        return bool(len(lost))

    def tasks(self, chosen: Set[str]) -> list[CurationTask]:
        """Return what is left to do before deduplication for the chosen URIs.

        Large sources come first: one that came last would run alone.
        """
        waiting = [source for uri, source in self.sources.items() if uri in chosen and uri not in self.closed]
        tasks: list[CurationTask] = [
            self._source_task(source) for source in sorted(waiting, key=lambda one: (-one.size, one.uri))
        ]
        if not self.beside:
            return tasks
        clips = self.closed.clips(self._numbered(chosen))
        clips, found = self._todo(clips, self.beside)
        at_hand = self._at_hand(clips)
        numbers = column(clips, "source").to_numpy()
        for number in np.unique(numbers).tolist():
            own = numbers == number
            if at_hand[own].all():
                some = {name: kept(table, own) for name, table in found.items()}
                tasks += self._clip_tasks(kept(clips, own), some, self.beside)
            else:
                tasks.append(self._source_task(self.listed[number]))
        return tasks

    def later_tasks(self, clips: pa.Table) -> list[ClipTask]:
        """Return what is left to do for kept clips after deduplication."""
        return list(self._clip_tasks(*self._todo(clips, self.later), self.later)) if self.later else []

    def _todo(self, clips: pa.Table, stages: Sequence[ClipStage]) -> tuple[pa.Table, Results]:
        """Return the clips that no threshold rejects and that lack a stage, and all results there are for them."""
        clips = kept(clips, equal(clips, "state", "kept"))
        found = self._known(clips)
        lacking = np.zeros(len(clips), bool)
        for stage in stages:
            lacking |= ~there(found[stage.name])
        clips, found = kept(clips, lacking), {name: kept(table, lacking) for name, table in found.items()}
        wanted = equal(self._judged(clips, found), "state", "kept")
        return kept(clips, wanted), {name: kept(table, wanted) for name, table in found.items()}

    def _clip_tasks(self, clips: pa.Table, found: Results, stages: Sequence[ClipStage]) -> Iterator[ClipTask]:
        """Yield each clip with all that is known of it, and with the stages left to do."""
        columns = {name: to_results(table) for name, table in found.items()}
        for row, (task, place) in enumerate(
            zip(self._plain_tasks(clips), self.places_of(clip_ids(clips)), strict=True)
        ):
            results = {name: one for name, column in columns.items() if (one := column[row]) is not None}
            todo = tuple(stage.name for stage in stages if stage.name not in results)
            yield replace(task, found=results, todo=todo, place=place)

    def _plain_tasks(self, clips: pa.Table) -> Iterator[ClipTask]:
        """Yield a task for each clip, before any result and with nothing to do."""
        numbers = column(clips, "source").to_pylist()
        for number, record in zip(numbers, to_records(clips, self._uris), strict=True):
            source = self.listed[number]
            yield ClipTask(record, source.caption, source.listed_in, self.closed.tags(number))

    def places_of(self, ids: pa.Array) -> Iterator[ClipPlace | None]:
        """Yield the place of each clip in the present revision, by identity of its bytes."""
        for row in self._placed(ids).to_pylist():
            yield None if row["id"] is None else ClipPlace(row["shard"], row["offset"], row["size"])

    def _source_task(self, source: SourceRef) -> SourceTask:
        return SourceTask(source, tuple(stage.name for stage in self.beside))

    def _known(self, clips: pa.Table) -> dict[str, pa.Table]:
        """Return the results of all stages for clips."""
        found: dict[str, pa.Table] = {}
        for stage in self.stages:
            found[stage.name] = self._results[stage.name].find(
                stage.identity.of_clips(clips, found, self.closed)
            )
        return found

    def _placed(self, ids: pa.Array) -> pa.Table:
        return taken(self.places, places_in(ids, column(self.places, "id")))

    def _at_hand(self, clips: pa.Table) -> Mask:
        if not len(clips):
            return np.zeros(0, bool)
        ids = clip_ids(clips)
        staged = pa.array(self.ledger.staged_clips(), pa.string())
        return (places_in(ids, staged) >= 0) | (places_in(ids, column(self.places, "id")) >= 0)

    def _numbered(self, chosen: Set[str]) -> Mask:
        """Return which sources are chosen and were not taken down."""
        return np.array([uri in chosen and uri in self.sources for uri in self._uris], bool)

    def verdict(
        self, chosen: Set[str], failed: Set[tuple[int, int]], match: MatchMany | None = None
    ) -> pa.Table:
        """Return every span, and every source that gave none, with its state before later stages.

        Rows are sorted by source and span.

        Args:
            chosen: URIs of the sources that count.
            failed: (source, part) of clips that a later stage is known to fail.
            match: Comparison of many pairs at once; None compares one after the other, here.
        """
        clips = self.closed.clips(self._numbered(chosen))
        found = self._known(clips)
        earlier = {stage.name: found[stage.name] for stage in self.earlier}
        parts = [self._judged(clips, earlier)]
        if failed:
            spans = zip(column(clips, "source").to_pylist(), column(clips, "part").to_pylist(), strict=True)
            known_to_fail = np.array([span in failed for span in spans], bool)
            some = {name: kept(table, known_to_fail) for name, table in found.items()}
            parts = [kept(parts[0], ~known_to_fail), self._judged(kept(clips, known_to_fail), some)]
        removed = [emptied(Record(uri), self._down.sources[uri]) for uri in self._removed]
        clips = by_span(joined([*parts, from_records(removed, self.closed.numbers)]))
        clips = without_copies(taken_down(clips, self._down, self.closed.numbers), self._uris)
        if self.config.dedup.evaluation or self.config.dedup.older:
            clips = without_known(clips, known(self._dedup_clips(clips), self.config))
        return without_duplicates(clips, dedup(self._dedup_clips(clips, match), self.config.dedup))

    def _judged(self, clips: pa.Table, found: Results) -> pa.Table:
        return judged(clips, found, self.config.filters, self.config.shard, self.wanted.scores)

    def finished(self, clips: pa.Table) -> pa.Table:
        """Return clips of the verdict with the results of later stages: their captions, or faults."""
        return self._judged(clips, self._known(clips)) if self.later else clips

    def _dedup_clips(self, clips: pa.Table, match: MatchMany | None = None) -> DedupClips:
        """Return the kept clips as `curate.dedup` compares them."""
        clips = kept(clips, equal(clips, "state", "kept"))
        self._read_arrays(clips)
        places = self._arrays.find(clip_ids(clips))
        numbers = column(clips, "source")

        def many(match: MatchMany) -> ManyPairs:
            def compare(pairs: Sequence[tuple[int, int]], min_overlap: float) -> list[Match | None]:
                fingerprint_place = self._arrays.fingerprint_place
                named = [
                    (fingerprint_place(int(places[one])), fingerprint_place(int(places[two])))
                    for one, two in pairs
                ]
                return match(named, min_overlap)

            return ManyPairs(PAIRS_AT_ONCE, compare)

        return DedupClips(
            keys=column(clips, "key"),
            sha256=column(clips, "sha256"),
            sources=pa.DictionaryArray.from_arrays(numbers, pa.array(self._uris, pa.string())),
            quality=qualities(clips),
            old=places_in(clip_ids(clips), column(self.places, "id")) >= 0,
            footage=Vectors(places >= 0, lambda rows: self._arrays.vectors(places[rows], np.float32)),
            embedding=self._model_vectors(clips),
            fingerprint=lambda row: self._arrays.fingerprint(int(places[row])) if places[row] >= 0 else None,
            many=None if match is None else many(match),
        )

    def _model_vectors(self, clips: pa.Table) -> Vectors:
        stage = embedding_stage(self.config)
        if stage is None:
            return Vectors.of([None] * len(clips))
        matrix, found = packed_arrays(self._known(clips)[stage])
        return Vectors(found, lambda rows: matrix[rows].astype(np.float32))

    def samples(self, clips: pa.Table) -> pa.Table:
        """Return the kept clips as samples of shards; see `curate.run.tables.samples`."""
        clips = kept(clips, equal(clips, "state", "kept"))
        places, found = self._placed(clip_ids(clips)), self._known(clips)
        return samples_of(clips, self.listed, places, self._embeddings(clips, found), found.get(TEXT_EMBED))

    def _embeddings(self, clips: pa.Table, found: Results) -> pa.Array:
        """Return the video embedding of each clip, of the backend that the configuration names."""
        if (stage := embedding_stage(self.config)) is not None:
            return vector_column(*packed_arrays(found[stage]))
        if self.config.embed.backend == "none":
            return vector_column(np.zeros((len(clips), 1), np.float16), np.zeros(len(clips), bool))
        self._read_arrays(clips)
        places = self._arrays.find(clip_ids(clips))
        return vector_column(self._arrays.vectors(places), places >= 0)

    def _read_arrays(self, clips: pa.Table) -> None:
        numbers = np.unique(column(clips, "source").to_numpy()).tolist()
        self._arrays.read(self._arrays_name(self.listed[number]) for number in numbers)

    def _arrays_name(self, source: SourceRef) -> str:
        return arrays_name(source, self.cut.fingerprint)


PLACES = pa.schema({"id": pa.string(), "shard": pa.string(), "offset": pa.int64(), "size": pa.int64()})
"""Bytes of clips inside shards, by identity of these bytes."""


def places_of(dataset: Dataset | None) -> pa.Table:
    """Return the places of a dataset's clips, columns `PLACES`."""
    if dataset is None:
        return PLACES.empty_table()
    index = dataset.index.select(["key", "sha256", "shard", "members"]).combine_chunks()
    members = column(index, "members")
    rows, values = pc.list_parent_indices(members), members.flatten()
    clips = pc.equal(values.field("suffix"), "mp4")
    index = index.take(rows.filter(clips))
    where = values.filter(clips)
    columns = [clip_ids(index), column(index, "shard"), where.field("offset"), where.field("size")]
    return pa.table(columns, PLACES)


def clips_of(dataset: Dataset) -> pa.Array:
    """Return the identities of a dataset's clips."""
    names = ["key", "sha256"]
    return clip_ids(pa.table([dataset.read_column(name) for name in names], names))
