"""One run of curation: what is left to do, doing it, and the verdict on everything."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from curate.config import CurateConfig, fingerprint
from curate.dedup import Item, dedup, quality
from curate.ledger import Ledger, digest
from curate.records import Record, Row
from curate.run.clip_stages import ClipStage, pack_array, unpack_array
from curate.run.forecast import Forecast, ForecastConfig, Measured, choose_sample, extents, forecast
from curate.run.model_stages import availability, clip_stages, judge, pipeline_stages
from curate.run.reference_sets import without_known
from curate.run.shard import STAGE as SHARD
from curate.run.shard import Kept, WriteShard, plan_shards, untouched, written_shards
from curate.run.verdict import described, taken_down, without_copies, without_duplicates
from curate.runners.passes import Pass, plan_notes, run_pass, total_seconds
from curate.runners.pipeline import SILENCE_S, Pool, Stage, cluster_size, run_sequentially, runner
from curate.runners.progress import ClipMeter, Meter, Progress
from curate.source_pass.at_work import watching
from curate.source_pass.stage import STAGE as CUT
from curate.source_pass.stage import CutSource, SourceStage, arrays_name, clip_row, source_id
from curate.sources.headers import read_headers
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import STAGE as REMOVAL
from curate.takedown.takedown import TakeDowns, emptied
from loader.dataset import Dataset, ShardRecord, next_shard_number
from loader.dataset.tables.parquet import to_rows
from loader.errors import RunError, UsageError

RUN = "run"
"""Note of the ledger: how the last run went."""

_SMALL_BYTES = 1e9
"""Shards of less than this in all are written by the driver: starting Ray would take longer."""


class Work:
    """One run: what is known of every source and clip, from the ledger and from this run's workers."""

    def __init__(
        self,
        config: CurateConfig,
        ledger: Ledger,
        sources: list[SourceRef],
        dataset: Dataset | None,
        progress: Callable[[Progress], None],
        models: Mapping[str, str],
    ) -> None:
        self._config, self._ledger, self._dataset, self._progress = config, ledger, dataset, progress
        self._down = TakeDowns(tuple(dataset.manifest.removals) if dataset is not None else ())
        self._removed = [source for source in sources if source.uri in self._down.sources]
        sources = [source for source in sources if source.uri not in self._down.sources]
        self._sources = {source.uri: source for source in sources}
        source_config = config.source_stage()
        self._cut = CutSource(source_config, config.storage, ledger, fingerprint(source_config), self._down)
        self._stages = clip_stages(config, ledger, models)
        self._earlier = [stage for stage in self._stages if not stage.after_dedup]
        self._later = [stage for stage in self._stages if stage.after_dedup]
        self._judge = judge(config)
        by_id = {source_id(source): source.uri for source in sources}
        closed = ledger.closed(CUT, self._cut.fingerprint)
        self._entries = {by_id[name]: entry for name, entry in closed.items() if name in by_id}
        self._results = {stage.name: ledger.closed(stage.name, stage.fingerprint) for stage in self._stages}
        self._places = places_of(dataset)
        self._arrays: dict[str, dict[str, NDArray[Any]]] = {}
        self._passes: list[Pass] = []
        self._slowest: tuple[tuple[str, float], ...] = ()
        self.notes: tuple[str, ...] = availability(config)

    def decide(self, only: Sequence[SourceRef] | None = None) -> list[Record]:
        """The final state of everything, after every source, or only some, went through all stages.

        Duplicates are sought before later stages ask their models, so that those see only clips that are kept.
        Where a later stage fails a clip that others were dropped for, duplicates are sought once more without it.
        The result follows from sources and configuration alone, whatever earlier runs asked.
        """
        began = time.monotonic()
        chosen = set(self._sources) if only is None else {source.uri for source in only}
        self._do_sources(chosen)
        failed: set[tuple[str, int]] = set()
        while True:
            records = self._verdict(chosen, failed)
            if self._forget_lost(records):
                self._do_sources(chosen)
                continue
            self._do_later(records)
            finished = [self._finished(record) for record in records]
            gone = [now for now, then in zip(finished, records, strict=True) if now.state != then.state]
            failed |= {(record.source, record.part) for record in gone}
            if not {record.key for record in gone} & {record.duplicate_of for record in records}:
                break
        if only is None:
            if seconds := self.seconds():
                note = {"wall_s": time.monotonic() - began, "worker_seconds": seconds, "notes": self.notes}
                self._ledger.write_note(RUN, {**note, "plans": plan_notes(self._passes)})
            self._ledger.pack(CUT, self._cut.fingerprint)
            for stage in self._stages:
                self._ledger.pack(stage.name, stage.fingerprint)
        return finished

    def _do_sources(self, chosen: Set[str]) -> None:
        """Bring the chosen sources, and those of their clips that are still wanted, through all earlier stages."""
        meter = Meter(list(self._sources.values()), self._entries, self._progress, self._ledger)
        meter.show()
        by_id = {source_id(source): source.uri for source in self._sources.values()}

        def take(row: Row) -> None:
            if row["kind"] == "closed":
                uri = by_id[row["id"]]
                self._entries[uri] = row["entry"]
                meter.done(uri, row["entry"])
            else:
                self._take(row)

        def stages(pools: Mapping[str, Pool]) -> list[Stage]:
            return [self._cut_stage(pools), *self._clip_pipeline(self._earlier, pools)]

        with watching(self._ledger, meter.show_at_work):
            self._passes.append(
                run_pass("sources", self._rows(chosen), stages, self._config.run.runner, take)
            )
        SourceStage.close()
        self._slowest = meter.slowest
        if missing := sorted(chosen - self._entries.keys()):
            raise RunError(
                f"{missing[0]} and {len(missing) - 1} other sources gave no result; run the same command again"
            )

    def _do_later(self, records: Sequence[Record]) -> None:
        """Bring all kept clips through the stages that come after deduplication."""
        rows = [self._row(record, self._later) for record in records if record.state == "kept"]
        rows = [row for row in rows if row["todo"] and self._judge(row)]
        if not rows:
            return
        meter = ClipMeter(len(rows), self._progress, self._ledger, self._slowest)

        def take(row: Row) -> None:
            self._take(row)
            meter.done(row["record"]["source"])

        def stages(pools: Mapping[str, Pool]) -> list[Stage]:
            return self._clip_pipeline(self._later, pools)

        self._passes.append(run_pass("clips", rows, stages, self._config.run.runner, take))

    def _cut_stage(self, pools: Mapping[str, Pool]) -> Stage:
        run = self._config.run
        return Stage(
            CUT,
            SourceStage(self._cut, self._judge, run.isolate, run.attempts, run.max_source_s),
            limit=pools[CUT].most if CUT in pools else None,
            gpus=run.shots_gpus if self._config.shots.may_use_gpu and self._gpus() else 0.0,
            memory_mb=run.worker_memory_mb,
            max_silence_s=run.attempts * run.max_source_s + SILENCE_S,
        )

    def _clip_pipeline(self, stages: Sequence[ClipStage], pools: Mapping[str, Pool]) -> list[Stage]:
        return pipeline_stages(stages, self._config, pools, self._gpus())

    def _gpus(self) -> float:
        return cluster_size().gpus if self._config.run.runner == "ray" else 0.0

    def seconds(self) -> dict[str, float]:
        """Seconds that all workers of this run spent, by stage."""
        return total_seconds(self._passes)

    def forecast(self, config: ForecastConfig) -> Forecast:
        """Works on a sample of the sources and scales what it gave and cost."""
        sources = list(self._sources.values())
        looked_at = sorted(sources, key=lambda source: digest(source.uri))[: config.headers]
        headers = read_headers(looked_at, self._config.storage, self._config.probe)
        extent = extents(sources, headers)
        sample = choose_sample(sources, extent, config.sample)
        if not sample:
            raise UsageError("no source with a video that can be read; there is nothing to forecast")
        records: dict[str, list[Record]] = defaultdict(list)
        for record in self.decide(sample):
            records[record.source].append(record)
        model_s = {name: spent for name, spent in self.seconds().items() if name != CUT}
        kept = sum(record.state == "kept" for found in records.values() for record in found)
        gpu_s_of_clip = self._gpu_seconds(model_s) / max(1, kept)
        measured = [self._measured(source, records[source.uri], gpu_s_of_clip) for source in sample]
        found = forecast(measured, sources, extent, config)
        self._ledger.write_note("forecast", asdict(found))
        return found

    def _measured(self, source: SourceRef, records: Sequence[Record], gpu_s_of_clip: float) -> Measured:
        entry = self._entries[source.uri]
        kept = [record for record in records if record.state == "kept"]
        return Measured(
            uri=source.uri,
            clips=len(kept),
            clip_bytes=sum(record.clip_bytes for record in kept),
            clip_s=sum(record.duration_s for record in kept),
            core_s=float(entry.get("cpu_s") or 0.0),
            gpu_s=gpu_s_of_clip * len(kept),
        )

    def _gpu_seconds(self, seconds: Mapping[str, float]) -> float:
        shares = {stage.name: stage.gpus for stage in self._clip_pipeline(self._stages, {})}
        return sum(spent * shares.get(name, 0.0) for name, spent in seconds.items())

    def _forget_lost(self, records: Sequence[Record]) -> bool:
        """Whether kept clips are not at hand any more; their sources then count as not done."""
        at_hand = self._ledger.staged_clips() | self._places.keys()
        lost = {one.source for one in records if one.state == "kept" and one.clip_id not in at_hand}
        for uri in lost:
            del self._entries[uri]
        return bool(lost)

    def _verdict(self, chosen: Set[str], failed: Set[tuple[str, int]]) -> list[Record]:
        """The state of every span and of every source that gave none, before later stages; by source and span.

        Args:
            chosen: URIs of the sources that count.
            failed: (source, part) of clips that a later stage is known to fail.
        """
        earlier = {stage.name for stage in self._earlier}

        def state(source: SourceRef, row: Row) -> Record:
            found = self._found(source, row)
            if (source.uri, row["part"]) not in failed:
                found = {name: result for name, result in found.items() if name in earlier}
            return self._judge.judged(described(Record.from_row(row), source), found)

        records = [
            state(source, row)
            for uri, source in sorted(self._sources.items())
            if uri in chosen
            for row in self._entries[uri]["records"]
        ]
        records += [emptied(Record(source.uri), self._down.sources[source.uri]) for source in self._removed]
        records.sort(key=lambda record: (record.source, record.part))
        records = without_copies(taken_down(records, self._down))
        if self._config.dedup.evaluation or self._config.dedup.older:
            records = without_known(records, *self._items(records), self._config)
        new, old = self._items(records)
        return without_duplicates(records, dedup(new, self._config.dedup, old))

    def _finished(self, record: Record) -> Record:
        """A record of the verdict with what later stages found: its caption, or why there is none."""
        if record.state != "kept":
            return record
        return self._judge.judged(record, self._found(self._sources[record.source], record.to_row()))

    def shards(self, records: list[Record]) -> list[ShardRecord]:
        """Shards with every kept record: those that may stay, and new ones."""
        kept = [self._kept(record) for record in records if record.state == "kept"]
        present = self._dataset.shards() if self._dataset is not None else []
        stay = untouched(present, kept)
        settled = {row["key"] for shard in stay for row in shard.rows}
        number = next_shard_number(present)
        self._rescue(records, stay)
        plans = plan_shards(
            [one for one in kept if one.record.key not in settled], self._config.shard, number
        )
        name = fingerprint(self._config.shard)
        closed = written_shards(self._ledger, SHARD, name)
        done = sum(plan.id in closed for plan in plans)
        weights = {plan.id: plan.clip_bytes for plan in plans}
        filled = sum(weights[plan.id] for plan in plans if plan.id in closed)

        def report() -> None:
            self._progress(Progress("shard", done, len(plans), filled, sum(weights.values())))

        report()
        rows = [plan.to_row() for plan in plans if plan.id not in closed]
        small = sum(weights.values()) < _SMALL_BYTES
        run = run_sequentially if small else runner(self._config.run.runner)
        for row in run(rows, [Stage(SHARD, WriteShard(self._ledger, name))]):
            done += 1
            filled += weights[row["id"]]
            report()
        closed = self._ledger.closed(SHARD, name)
        return [*stay, *(ShardRecord(**closed[plan.id]) for plan in plans)]

    def _rescue(self, records: Sequence[Record], stay: Sequence[ShardRecord]) -> None:
        """Clips that leave the dataset with their shard, but may come back, are laid down in the ledger first."""
        staying = {shard.path for shard in stay}
        if self._dataset is None or not self._config.run.keep_rejected:
            return
        for record in records:
            place = self._places.get(record.clip_id)
            if place and place[0] not in staying and record.state != "kept" and record.stage != REMOVAL:
                self._ledger.write_clip(record.clip_id, self._dataset.storage.read(*place))

    def forget_failures(self) -> None:
        """Takes failed sources and clips for not done yet."""
        for uri, entry in list(self._entries.items()):
            if any(record["state"] == "failed" for record in entry["records"]):
                del self._entries[uri]
        for stage in self._stages:
            results = self._results[stage.name]
            self._results[stage.name] = {name: row for name, row in results.items() if "fault" not in row}

    def _rows(self, chosen: Set[str]) -> list[Row]:
        """What is left to do before deduplication. Large sources first: one that comes last would run alone."""
        waiting = [
            source for uri, source in self._sources.items() if uri in chosen and uri not in self._entries
        ]
        rows = [self._source_row(source) for source in sorted(waiting, key=lambda one: (-one.size, one.uri))]
        at_hand = self._ledger.staged_clips() | self._places.keys()
        for uri, entry in sorted(self._entries.items()):
            if uri in chosen:
                rows += self._clip_rows(self._sources[uri], entry, at_hand)
        return rows

    def _clip_rows(self, source: SourceRef, entry: Row, at_hand: Set[str]) -> list[Row]:
        """What is left to do for the clips of a closed source; a clip that is gone asks for its source again."""
        rows = []
        for one in entry["records"]:
            record = Record.from_row(one)
            if record.state != "kept":
                continue
            row = self._row(record, self._earlier)
            if row["todo"] and self._judge(row):
                if record.clip_id not in at_hand:
                    return [self._source_row(source)]
                rows.append(row)
        return rows

    def _source_row(self, source: SourceRef) -> Row:
        return {"kind": "source", "source": asdict(source), "todo": [stage.name for stage in self._earlier]}

    def _row(self, record: Record, stages: Sequence[ClipStage]) -> Row:
        """A clip as runners take it, with all that is known of it, and what of some stages is left to do."""
        source = self._sources[record.source]
        row = clip_row(source, self._entries[source.uri], record.to_row())
        found = self._found(source, row["record"])
        todo = [stage.name for stage in stages if stage.name not in found]
        return {**row, "found": found, "todo": todo, "place": self._places.get(record.clip_id)}

    def _take(self, row: Row) -> None:
        for stage in self._stages:
            if stage.name in row["found"]:
                self._results[stage.name][stage.identity(row)] = row["found"][stage.name]

    def _found(self, source: SourceRef, record: Row) -> dict[str, Row]:
        """Results of the stages over clips, as far as they are known, for one clip."""
        entry = self._entries[source.uri]
        row = clip_row(source, entry, record)
        if record["key"]:
            for stage in self._stages:
                result = self._results[stage.name].get(stage.identity(row))
                if result is not None:
                    row["found"][stage.name] = result
        found: dict[str, Row] = row["found"]
        return found

    def _items(self, records: Sequence[Record]) -> tuple[list[Item], list[Item]]:
        """Kept clips as `curate.dedup` takes them: new ones, and those the dataset holds already."""
        new: list[Item] = []
        old: list[Item] = []
        for record in records:
            if record.state == "kept":
                item = self._item(record)
                (old if record.clip_id in self._places else new).append(item)
        return new, old

    def _item(self, record: Record) -> Item:
        """A clip as `curate.dedup` sees it."""
        arrays = self._arrays_of(record)
        return Item(
            key=record.key or "",
            sha256=record.sha256,
            source=record.source,
            duration_s=record.duration_s,
            quality=quality(record.scores, record.width, record.height, record.clip_bytes, record.duration_s),
            fingerprint=arrays.get(f"{record.clip_id}.fingerprint"),
            embedding=None if self._config.embed.backend == "perceptual" else self._embedding(record),
            global_embedding=arrays.get(f"{record.clip_id}.perceptual"),
        )

    def _kept(self, record: Record) -> Kept:
        embedding = self._embedding(record)
        text = self._found(self._sources[record.source], record.to_row()).get("text_embed")
        return Kept(
            record,
            None if embedding is None else pack_array(embedding),
            (text["arrays"], text["sha256"]) if text else None,
            self._places.get(record.clip_id),
        )

    def _embedding(self, record: Record) -> NDArray[Any] | None:
        """The clip's video embedding as the configuration asks for it, float16 [D], or None."""
        backend = self._config.embed.backend
        if backend == "perceptual":
            return self._arrays_of(record).get(f"{record.clip_id}.perceptual")
        if backend == "none":
            return None
        found = self._found(self._sources[record.source], record.to_row())
        return unpack_array(found["embed"]["embedding"])

    def _arrays_of(self, record: Record) -> dict[str, NDArray[Any]]:
        if record.source not in self._arrays:
            name = arrays_name(self._sources[record.source], self._cut.fingerprint)
            self._arrays[record.source] = self._ledger.read_arrays(name)
        return self._arrays[record.source]


def places_of(dataset: Dataset | None) -> dict[str, tuple[str, int, int]]:
    """Where the clips of a dataset lie, by the identity of their bytes."""
    if dataset is None:
        return {}
    places = {}
    for row in to_rows(dataset.index.select(["key", "sha256", "shard", "members"])):
        clip = next(member for member in row["members"] if member["suffix"] == "mp4")
        clip_id = Record(source="", key=row["key"], sha256=row["sha256"]).clip_id
        places[clip_id] = (row["shard"], clip["offset"], clip["size"])
    return places
