"""State of a curation: all that is known of its sources and clips, and the tasks that are left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from curate.config import CurateConfig, fingerprint
from curate.dedup import DedupItem, dedup, quality
from curate.ledger import Ledger
from curate.models.clip_frames import Fault
from curate.records import (
    ClipEmbedding,
    ClipResult,
    Record,
    SourceSummary,
    TextEmbedding,
    clip_id,
    clip_result,
    source_summary,
)
from curate.run.clip_arrays import ClipArrays
from curate.run.clip_stages import ClipStage
from curate.run.model_stages import EMBED, TEXT_EMBED, clip_stages, judge
from curate.run.reference_sets import without_known
from curate.run.segments import Segments
from curate.run.shard import KeptSample
from curate.run.verdict import described, taken_down, without_copies, without_duplicates
from curate.source_pass.stage import STAGE as CUT
from curate.source_pass.stage import CutSource, arrays_name, source_id
from curate.source_pass.tasks import ClipPlace, ClipTask, CurationTask, SourceTask, clip_task
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import TakeDowns, emptied
from loader.dataset import Dataset
from loader.dataset.tables.parquet import to_rows


class CurationState:
    """Everything known of every source and clip, from the ledger, the dataset and the workers of this run.

    Args:
        config: Configuration of all stages.
        ledger: Entries of this run and of earlier ones.
        sources: All sources of the input.
        dataset: The present revision; None where nothing is published.
        models: Identities from `curate.run.model_files.model_digests`.

    Attributes:
        config: See above.
        ledger: See above.
        dataset: See above.
        sources: Sources that were not taken down, by URI.
        summaries: Summaries of closed sources, by URI.
        cut: Function that cuts one source.
        stages: Stages over clips.
        earlier: Those before deduplication.
        later: Those after it.
        beside: Those that run while sources are cut: the earlier ones, or all.
        places: Places of the clips of the present revision, by identity of their bytes.
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
        self._removed = by_uri.keys() & self._down.sources.keys()
        self.sources = {uri: source for uri, source in by_uri.items() if uri not in self._removed}
        source_config = config.source_stage()
        self.cut = CutSource(source_config, config.storage, ledger, fingerprint(source_config), self._down)
        self.stages = clip_stages(config, ledger, models)
        self.earlier = [stage for stage in self.stages if not stage.after_dedup]
        self.later = [stage for stage in self.stages if stage.after_dedup]
        self.beside = self.stages if config.run.caption_while_cutting else self.earlier
        self.wanted = judge(config)
        by_id = {source_id(source): uri for uri, source in self.sources.items()}
        closed = ledger.closed(CUT, self.cut.fingerprint, source_summary)
        self.summaries = {by_id[name]: summary for name, summary in closed.items() if name in by_id}
        self._results: dict[str, dict[str, ClipResult]] = {
            stage.name: ledger.closed(stage.name, stage.fingerprint, clip_result) for stage in self.stages
        }
        self.places = places_of(dataset)
        self._arrays = ClipArrays(ledger)
        self._segments = Segments(ledger)

    def close_source(self, uri: str, summary: SourceSummary) -> None:
        """Add the summary of a source, whose arrays may have been written anew."""
        self.summaries[uri] = summary
        self._segments.add(CUT, self.cut.fingerprint, source_id(self.sources[uri]), summary)
        self._arrays.forget(self._arrays_name(uri))

    def add_results(self, task: ClipTask) -> None:
        """Add the results that a task carries."""
        for stage in self.stages:
            identity = stage.identity(task) if stage.name in task.found else None
            if identity is not None and identity not in self._results[stage.name]:
                self._results[stage.name][identity] = task.found[stage.name]
                self._segments.add(stage.name, stage.fingerprint, identity, task.found[stage.name])

    def forget_failures(self) -> None:
        """Count failed sources and clips as not done."""
        for uri, summary in list(self.summaries.items()):
            if any(record.state == "failed" for record in summary.records):
                del self.summaries[uri]
        for name, results in self._results.items():
            self._results[name] = {
                one: found for one, found in results.items() if not isinstance(found, Fault)
            }

    def forget_lost(self, records: Sequence[Record]) -> bool:
        """Count sources as not done whose kept clips are lost; return whether there are any."""
        at_hand = self._at_hand()
        lost = {one.source for one in records if one.state == "kept" and one.clip_id not in at_hand}
        for uri in lost:
            del self.summaries[uri]
        return bool(lost)

    def tasks(self, chosen: Set[str]) -> list[CurationTask]:
        """Return what is left to do before deduplication for the chosen URIs.

        Large sources come first: one that came last would run alone.
        """
        waiting = [source for uri, source in self.sources.items() if uri in chosen - self.summaries.keys()]
        tasks: list[CurationTask] = [
            self._source_task(source) for source in sorted(waiting, key=lambda one: (-one.size, one.uri))
        ]
        if not self.beside:
            return tasks
        at_hand = self._at_hand()
        for uri in sorted(chosen & self.summaries.keys()):
            tasks += self._clip_tasks(self.sources[uri], at_hand)
        return tasks

    def later_tasks(self, records: Sequence[Record]) -> list[ClipTask]:
        """Return what is left to do for kept clips after deduplication."""
        if not self.later:
            return []
        tasks = (self._clip_task(record, self.later) for record in records if record.state == "kept")
        return [task for task in tasks if task.todo and self.wanted(task)]

    def _clip_tasks(self, source: SourceRef, at_hand: Set[str]) -> Sequence[CurationTask]:
        """Return what is left to do for the clips of a closed source, or for the source where a clip is lost."""
        kept = (one for one in self.summaries[source.uri].records if one.state == "kept")
        tasks = [task for task in (self._clip_task(one, self.beside) for one in kept) if task.todo]
        tasks = [task for task in tasks if self.wanted(task)]
        if any(task.record.clip_id not in at_hand for task in tasks):
            return [self._source_task(source)]
        return tasks

    def _source_task(self, source: SourceRef) -> SourceTask:
        return SourceTask(source, tuple(stage.name for stage in self.beside))

    def _clip_task(self, record: Record, stages: Sequence[ClipStage]) -> ClipTask:
        """Return a clip with all that is known of it, and with the stages left to do."""
        task = self._known(record)
        todo = tuple(stage.name for stage in stages if stage.name not in task.found)
        return replace(task, todo=todo, place=self.places.get(record.clip_id))

    def _known(self, record: Record) -> ClipTask:
        """Return a clip with the results of all stages that are known."""
        task = clip_task(self.sources[record.source], self.summaries[record.source], record)
        if record.key:
            for stage in self.stages:
                result = self._results[stage.name].get(stage.identity(task))
                if result is not None:
                    task = task.with_result(stage.name, result)
        return task

    def _at_hand(self) -> Set[str]:
        return self.ledger.staged_clips() | self.places.keys()

    def verdict(self, chosen: Set[str], failed: Set[tuple[str, int]]) -> list[Record]:
        """Return the record of every span, and of every source that gave none, before later stages.

        Records are sorted by source and span.

        Args:
            chosen: URIs of the sources that count.
            failed: (source, part) of clips that a later stage is known to fail.
        """
        records = [self._judged(one, failed) for one in self._closed(chosen)]
        records += [emptied(Record(uri), self._down.sources[uri]) for uri in self._removed]
        records.sort(key=lambda record: (record.source, record.part))
        records = without_copies(taken_down(records, self._down))
        if self.config.dedup.evaluation or self.config.dedup.older:
            records = without_known(records, *self._items(records), self.config)
        new, old = self._items(records)
        return without_duplicates(records, dedup(new, self.config.dedup, old))

    def _closed(self, chosen: Set[str]) -> Iterator[Record]:
        for uri in chosen & self.sources.keys():
            yield from self.summaries[uri].records

    def _judged(self, record: Record, failed: Set[tuple[str, int]]) -> Record:
        found = self._known(record).found
        if (record.source, record.part) not in failed:
            found = {stage.name: found[stage.name] for stage in self.earlier if stage.name in found}
        return self.wanted.judged(described(record, self.sources[record.source]), found)

    def finished(self, record: Record) -> Record:
        """Return a record of the verdict with the results of later stages: its caption, or their fault."""
        if record.state != "kept" or not self.later:
            return record
        return self.wanted.judged(record, self._known(record).found)

    def _items(self, records: Sequence[Record]) -> tuple[list[DedupItem], list[DedupItem]]:
        """Return the kept clips as `curate.dedup` compares them: new ones, and those that the dataset holds."""
        new: list[DedupItem] = []
        old: list[DedupItem] = []
        kept = [record for record in records if record.state == "kept"]
        self._read_arrays(kept)
        for record in kept:
            (old if record.clip_id in self.places else new).append(self._item(record))
        return new, old

    def _item(self, record: Record) -> DedupItem:
        clip_id = record.clip_id
        return DedupItem(
            key=record.key or "",
            sha256=record.sha256,
            source=record.source,
            duration_s=record.duration_s,
            quality=quality(record.scores, record.width, record.height, record.clip_bytes, record.duration_s),
            fingerprint=self._arrays.fingerprint(clip_id),
            embedding=None if self.config.embed.backend == "perceptual" else self._embedding(record),
            global_embedding=self._arrays.vector(clip_id),
        )

    def samples(self, records: Sequence[Record]) -> list[KeptSample]:
        """Return the kept clips among the records as samples of shards."""
        kept = [record for record in records if record.state == "kept"]
        if self.config.embed.backend == "perceptual":
            self._read_arrays(kept)
        return [
            KeptSample(record, self._embedding(record), self._text(record), self.places.get(record.clip_id))
            for record in kept
        ]

    def _text(self, record: Record) -> TextEmbedding | None:
        if not any(stage.name == TEXT_EMBED for stage in self.stages):
            return None
        found = self._known(record).found.get(TEXT_EMBED)
        return found if isinstance(found, TextEmbedding) else None

    def _embedding(self, record: Record) -> NDArray[Any] | None:
        """Return the clip's video embedding, float16 [D], of the backend that the configuration names."""
        backend = self.config.embed.backend
        if backend == "perceptual":
            return self._arrays.vector(record.clip_id)
        found = self._known(record).found.get(EMBED)
        return found.embedding.array if isinstance(found, ClipEmbedding) else None

    def _read_arrays(self, records: Sequence[Record]) -> None:
        self._arrays.read(map(self._arrays_name, dict.fromkeys(record.source for record in records)))

    def _arrays_name(self, uri: str) -> str:
        return arrays_name(self.sources[uri], self.cut.fingerprint)


def places_of(dataset: Dataset | None) -> dict[str, ClipPlace]:
    """Return the places of a dataset's clips, by identity of their bytes."""
    if dataset is None:
        return {}
    places = {}
    for row in to_rows(dataset.index.select(["key", "sha256", "shard", "members"])):
        clip = next(member for member in row["members"] if member["suffix"] == "mp4")
        places[clip_id(row["key"], row["sha256"])] = ClipPlace(row["shard"], clip["offset"], clip["size"])
    return places


def clips_of(dataset: Dataset) -> set[str]:
    """Return the identities of a dataset's clips."""
    columns = (dataset.read_column(name).to_pylist() for name in ("key", "sha256"))
    return set(map(clip_id, *columns))
