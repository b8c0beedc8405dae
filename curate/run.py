"""Curation from inputs to a published dataset: list, cut, account, shard, publish."""

import importlib.metadata
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from curate.config import CurateConfig, fingerprint
from curate.inputs import SourceRef, list_sources
from curate.ledger import Ledger
from curate.pipeline import Stage, runner
from curate.records import Record, Row
from curate.shard import WriteShard, drop_copies, plan_shards
from curate.stages import CutSource, StageClip
from loader.dataset import ACCOUNTING, Manifest, ShardRecord, publish, read_manifest
from loader.dataset.manifest import MANIFEST
from loader.errors import RunError, UsageError
from loader.storage import Storage, open_storage

ACCOUNTING_FIELDS = tuple(ACCOUNTING.names)
VERSIONED = ("reelweave", "av", "numpy", "pyarrow", "webdataset")


@dataclass(frozen=True)
class Progress:
    """How far a phase is, in units of that phase.

    Attributes:
        phase: "cut" (sources, weighed by bytes) or "shard" (shards).
        done: units done, those of an earlier run too.
        total: units in all.
        done_bytes: weight of what is done.
        total_bytes: weight of all.
        states: records per state so far.
        current: what was finished last.
    """

    phase: str
    done: int
    total: int
    done_bytes: int
    total_bytes: int
    states: dict[str, int]
    current: str = ""


@dataclass(frozen=True)
class Outcome:
    """The published dataset, and whether this run had anything to do."""

    manifest: Manifest
    already_there: bool


def curate(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Makes the dataset ``out`` from ``inputs``; the same call finishes an interrupted run.

    A finished dataset is never changed: the same call again finds it and does nothing, another call is refused.

    Raises:
        UsageError: no source is found, or ``out`` holds a dataset of other inputs or configuration.
        RunError: the environment failed; what was done is kept for the next run.
    """
    storage = open_storage(out, config.storage)
    sources = list_sources(inputs, config.storage)
    described = {"curate": config.content(), "inputs": list(inputs), "sources": _sources_digest(sources)}
    ledger = Ledger(storage, config.clip_fingerprint())
    if storage.stat(MANIFEST) is not None:
        manifest = read_manifest(storage)
        _refuse_other(manifest.config, described, out)
        ledger.clear()
        storage.sweep()
        return Outcome(manifest, already_there=True)
    ledger.begin(config.content())
    records = drop_copies(_cut_all(sources, ledger, config, progress))
    shards = _shard_all(records, ledger, config, progress)
    accounting = [_accounting_row(record) for record in records]
    _remove_strays(storage, {shard.path for shard in shards})
    manifest = publish(storage, shards, accounting, described, versions())
    ledger.clear()
    storage.sweep()
    return Outcome(manifest, already_there=False)


def versions() -> dict[str, str]:
    """Versions of the code that decides the dataset's bytes."""
    found = {name: importlib.metadata.version(name) for name in VERSIONED}
    return {**found, "python": ".".join(str(part) for part in sys.version_info[:2])}


def _cut_all(
    sources: list[SourceRef], ledger: Ledger, config: CurateConfig, progress: Callable[[Progress], None]
) -> list[Record]:
    by_uri = {source.uri: source for source in sources}
    closed = ledger.closed_sources(sources)
    states = Counter(record.state for records in closed.values() for record in records)
    total_bytes = sum(max(0, source.size) for source in sources)

    def report(current: str = "") -> None:
        done_bytes = sum(max(0, by_uri[uri].size) for uri in closed)
        progress(Progress("cut", len(closed), len(sources), done_bytes, total_bytes, dict(states), current))

    report()
    # Large sources first: one that comes last would run alone.
    waiting = sorted(
        (source for source in sources if source.uri not in closed), key=lambda source: -source.size
    )
    rows = [asdict(source) for source in waiting]
    stages = [Stage(CutSource(config), fan_out=True), Stage(StageClip(ledger))]
    arrived: dict[str, list[Record]] = defaultdict(list)
    for row in runner(config.run.runner)(rows, stages):
        record = Record.from_row(row)
        records = arrived[record.source]
        records.append(record)
        if len(records) == record.parts:
            source = by_uri[record.source]
            closed[source.uri] = sorted(arrived.pop(source.uri), key=lambda record: record.part)
            ledger.close_source(source, closed[source.uri])
            states.update(record.state for record in records)
            report(source.uri)
    if missing := sorted(by_uri.keys() - closed.keys()):
        raise RunError(
            f"{missing[0]} and {len(missing) - 1} other sources gave no result; run the same command again"
        )
    return [record for uri in sorted(closed) for record in closed[uri]]


def _shard_all(
    records: list[Record], ledger: Ledger, config: CurateConfig, progress: Callable[[Progress], None]
) -> list[ShardRecord]:
    plans = plan_shards([record for record in records if record.state == "kept"], config.shard)
    closed = ledger.closed_shards()
    weights = {plan.id: sum(record.clip_bytes for record in plan.records) for plan in plans}
    done = [plan.id for plan in plans if plan.id in closed]

    def report() -> None:
        filled = sum(weights[plan_id] for plan_id in done)
        progress(Progress("shard", len(done), len(plans), filled, sum(weights.values()), {}))

    report()
    rows = [
        {"plan_id": plan.id, "number": plan.number, "records": [record.to_row() for record in plan.records]}
        for plan in plans
        if plan.id not in closed
    ]
    for row in runner(config.run.runner)(rows, [Stage(WriteShard(ledger))]):
        done.append(row["plan_id"])
        report()
    closed = ledger.closed_shards()
    return [ShardRecord(**closed[plan.id]) for plan in plans]


def _remove_strays(storage: Storage, planned: set[str]) -> None:
    """Shards of an interrupted run that was planned otherwise must not lie beside the published ones."""
    for item in list(storage.list("shards/")):
        if item.path.removesuffix(".idx") not in planned:
            storage.delete(item.path)


def _refuse_other(there: dict[str, Any], asked: dict[str, Any], out: str) -> None:
    if there == asked:
        return
    old, new = there.get("curate", {}), asked["curate"]
    changed = [
        f"{section}.{name}"
        for section, values in new.items()
        for name, value in values.items()
        if old.get(section, {}).get(name) != value
    ]
    difference = f"with another {', '.join(changed)}" if changed else "from other inputs"
    raise UsageError(f"{out} already holds a dataset made {difference}; choose another --out")


def _sources_digest(sources: list[SourceRef]) -> str:
    return fingerprint([[source.uri, source.size, source.caption] for source in sources])


def _accounting_row(record: Record) -> Row:
    row = record.to_row()
    return {name: row[name] for name in ACCOUNTING_FIELDS}
