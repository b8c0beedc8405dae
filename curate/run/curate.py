"""Curation from inputs to a published dataset: list, cut, ask models, judge, deduplicate, shard, publish."""

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from curate.config import CurateConfig
from curate.ledger import LEDGER, Ledger, digest
from curate.records import Record, Row
from curate.run.forecast import Forecast, ForecastConfig
from curate.run.model_files import model_digests
from curate.run.model_stages import check
from curate.run.reference_sets import fingerprints
from curate.run.shard import STAGE as SHARD
from curate.run.state import Work, places_of
from curate.runners.progress import Progress
from curate.sources.inputs import SourceRef, list_sources, shown
from curate.takedown.forget import forget
from curate.takedown.takedown import STAGE as REMOVAL
from curate.takedown.takedown import TakeDowns
from loader.dataset import ACCOUNTING, SCORES, Content, Dataset, Manifest, publish, settle
from loader.dataset.manifest import MANIFEST
from loader.errors import UsageError
from loader.storage import Storage, leased, open_storage

COMMAND = "reelweave curate"
VERSIONED = ("reelweave", "av", "numpy", "pyarrow")


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        manifest: of the published dataset.
        already_there: whether there was nothing to do.
        notes: sentences a person should read: models that could not be had, sources gone from the input.
        seconds: spent per stage by all workers of this run.
    """

    manifest: Manifest
    already_there: bool
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] | None = None


def curate(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    update: bool = False,
    retry_failed: bool = False,
) -> Outcome:
    """Makes the dataset ``out`` from ``inputs``; the same call finishes an interrupted run.

    Args:
        inputs: files, folders, prefixes, addresses, lists.
        out: folder or S3 prefix.
        config: of all stages.
        progress: called as the work goes on.
        update: change a finished dataset: other configuration, new sources beside the old ones. What is still
            valid is reused; shards whose samples stay the same are not touched.
        retry_failed: work again on sources and clips that failed; implies ``update``.

    Raises:
        UsageError: no source is found, a model cannot be had, or ``out`` holds a finished dataset of other
            inputs or configuration and ``update`` is not given.
        RunError: the environment failed; what was done is kept for the next run.
    """
    with leased(open_storage(out, config.storage), COMMAND) as storage:
        return _curate(inputs, storage, config, progress, update or retry_failed, retry_failed)


def _curate(
    inputs: Sequence[str],
    storage: Storage,
    config: CurateConfig,
    progress: Callable[[Progress], None],
    update: bool,
    retry_failed: bool,
) -> Outcome:
    """Curate as the holder of the output's lease."""
    ledger = Ledger(storage)
    dataset = Dataset(storage) if storage.stat(MANIFEST) is not None else None
    _check_ours(storage, ledger, dataset)
    change = dataset is not None and update
    told: list[str] = []
    sources = list_sources(inputs, config.storage, told.append)
    notes: tuple[str, ...] = ()
    inputs = [shown(text) for text in inputs]
    if change:
        inputs, sources, notes = _joined(ledger, inputs, sources)
    asked: dict[str, Any] = {
        "curate": config.content(),
        "inputs": list(inputs),
        "sources": _sources_digest(sources),
    }
    if others := fingerprints(config):
        asked["others"] = others
    if models := model_digests(config, ledger):
        asked["models"] = models
    if dataset is not None and not retry_failed and dataset.manifest.config == asked:
        _tidy(ledger, dataset, config)
        return Outcome(dataset.manifest, already_there=True, notes=tuple(told))
    if dataset is not None and not change:
        raise _other_dataset(dataset.manifest.config, asked, storage.root)
    weights = check(config)
    ledger.write_note("config", config.content())
    work = Work(config, ledger, sources, dataset, progress, models)
    if retry_failed:
        work.forget_failures()
    records = work.decide()
    shards = work.shards(records)
    content = Content(
        accounting=[_columns(record, ACCOUNTING.names) for record in records],
        scores=[
            _columns(record, SCORES.names) for record in records if record.key and record.stage != REMOVAL
        ],
        config=asked,
        versions={**versions(), **weights},
        removals=dataset.manifest.removals if dataset is not None else [],
    )
    ledger.write_note("inputs", {"inputs": list(inputs), "sources": [_stored(source) for source in sources]})
    manifest = publish(storage, shards, content, dataset.manifest if dataset is not None else None)
    rejected = {record.clip_id for record in records if record.state != "kept" and record.sha256}
    _tidy(ledger, Dataset(storage), config, rejected)
    return Outcome(manifest, False, (*work.notes, *told, *notes), work.seconds())


def forecast_curation(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    rates: ForecastConfig,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Forecast:
    """What `curate` would give and cost, from a sample of the sources; what was worked on is kept for the run.

    Raises:
        UsageError: no source is found, or a model cannot be had.
        RunError: the environment failed.
    """
    with leased(open_storage(out, config.storage), COMMAND) as storage:
        ledger = Ledger(storage)
        sources = list_sources(inputs, config.storage)
        check(config)
        models = model_digests(config, ledger)
        return Work(config, ledger, sources, None, progress, models).forecast(rates)


def versions() -> dict[str, str]:
    """Versions of the code that decides the dataset's bytes."""
    found = {name: importlib.metadata.version(name) for name in VERSIONED}
    return {**found, "python": ".".join(str(part) for part in sys.version_info[:2])}


def _joined(
    ledger: Ledger, inputs: Sequence[str], sources: Sequence[SourceRef]
) -> tuple[list[str], list[SourceRef], tuple[str, ...]]:
    """Inputs and sources of the runs before and of this one; a source that is named again is looked at anew."""
    before = ledger.read_note("inputs") or {"inputs": [], "sources": []}
    listed = {source.uri for source in sources}
    rows = [row for row in before["sources"] if row["uri"] not in listed]
    # A wrong line of a list that was read again is mended, or would have been found again.
    kept = [
        SourceRef(**row) for row in rows if not (row["fault"] and row["uri"].rpartition("#")[0] in inputs)
    ]
    joined = list(dict.fromkeys([*before["inputs"], *inputs]))
    notes = (f"{len(kept)} sources of earlier runs are not in the input and were kept",) if kept else ()
    return joined, sorted([*sources, *kept], key=lambda source: source.uri), notes


def _tidy(ledger: Ledger, dataset: Dataset, config: CurateConfig, rejected: Set[str] | None = None) -> None:
    """After publishing: a clip that lies in a shard is not kept twice, and nothing is left of what was replaced.

    Args:
        ledger: of the dataset.
        dataset: as published.
        config: whether rejected clips are kept.
        rejected: identities of clips that may come back; None: of all that are staged.
    """
    settle(dataset.storage, dataset.manifest, dataset.shards())
    forget(ledger, TakeDowns(tuple(dataset.manifest.removals)))
    staged = ledger.staged_clips()
    keep = staged if rejected is None else staged & rejected
    ledger.drop_clips(staged - (keep - places_of(dataset).keys() if config.run.keep_rejected else set()))
    dataset.storage.delete_tree(f"{LEDGER}{SHARD}/")
    dataset.storage.sweep()


def _check_ours(storage: Storage, ledger: Ledger, dataset: Dataset | None) -> None:
    """Raises `UsageError` where tars of somebody else lie among which ours would be written, or taken for strays."""
    begun = dataset is not None or ledger.read_note("config") is not None
    stray = None if begun else next(storage.list("shards/"), None)
    manifest = None if dataset is None else dataset.manifest
    if stray is not None or (manifest and (manifest.foreign or manifest.latents)):
        what = "a dataset" if stray is None else f"{stray.path}, a file"
        raise UsageError(f"{storage.root} holds {what} that no curation wrote; choose another --out")


def _other_dataset(there: Mapping[str, Any], asked: Mapping[str, Any], out: str) -> UsageError:
    changed = sorted(_differences(there.get("curate", {}), asked["curate"]))
    if not changed and there.get("others") != asked.get("others"):
        changed = ["content of a dataset that dedup names"]
    if not changed:
        models = _differences(there.get("models", {}), asked.get("models", {}))
        changed = [f"model at {name}" for name in sorted(models)]
    difference = f"with another {', '.join(changed)}" if changed else "from other inputs"
    return UsageError(
        f"{out} already holds a dataset made {difference}; choose another --out, or change it with --update"
    )


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}".lstrip("."))
    elif old != new:
        yield path


def _sources_digest(sources: Sequence[SourceRef]) -> str:
    # By whom a source was named says nothing of its bytes.
    rows = [_stored(source) for source in sources]
    return digest(
        *(json.dumps({k: v for k, v in row.items() if k != "listed_in"}, sort_keys=True) for row in rows)
    )


def _stored(source: SourceRef) -> Row:
    """A source as it may be written down: without the address that holds a password or a signature."""
    return asdict(replace(source, address=""))


def _columns(record: Record, names: Sequence[str]) -> Row:
    row = record.to_row()
    return {name: row[name] for name in names}
