"""Clips that other datasets hold already: older ones, and evaluation sets."""

from collections.abc import Sequence
from dataclasses import replace

from curate.config import CurateConfig
from curate.dedup import DedupItem, Duplicate, contaminated, dedup
from curate.ledger import Ledger
from curate.records import Record, clip_id
from curate.run.clip_arrays import ClipArrays
from curate.search.vectors import stored_vector
from loader.dataset import Dataset, open_dataset
from loader.dataset.tables.parquet import to_rows
from loader.errors import RunError, UsageError

_COLUMNS = ["key", "sha256", "source", "duration_s"]


def fingerprints(config: CurateConfig) -> dict[str, str]:
    """Return a digest of each dataset that ``config.dedup`` compares with, by URI.

    Raises:
        UsageError: there is none, or it cannot be compared with.
    """
    return {uri: _opened(uri, config).fingerprint for uri in (*config.dedup.evaluation, *config.dedup.older)}


def without_known(
    records: Sequence[Record], new: Sequence[DedupItem], old: Sequence[DedupItem], config: CurateConfig
) -> list[Record]:
    """Return the records; clips that evaluation sets hold, and new ones that older datasets hold, are filtered.

    Args:
        records: of the whole run.
        new: its kept clips.
        old: its kept clips that are in the dataset already; an older dataset takes none of these away.
        config: which datasets, and what counts as the same.

    Raises:
        UsageError: a dataset cannot be compared with.
    """
    found: dict[str, tuple[str, Duplicate]] = {}
    for uri in config.dedup.evaluation:
        for key, twin in contaminated([*new, *old], items_of(uri, config), config.dedup).items():
            found.setdefault(key, ("dedup.evaluation", twin))
    for uri in config.dedup.older:
        there = items_of(uri, config)
        names = {item.key for item in there}
        for key, twin in dedup(new, config.dedup, there).items():
            if twin.of in names:
                found.setdefault(key, ("dedup.older", twin))
    return [
        _filtered(record, *found[record.key or ""]) if record.key in found else record for record in records
    ]


def items_of(uri: str, config: CurateConfig) -> list[DedupItem]:
    """Return the samples of another dataset for deduplication; keys are ``URI#KEY``, unlike any of ours.

    Raises:
        UsageError: it is no dataset, or cannot be compared with.
    """
    dataset = _opened(uri, config)
    ledger = Ledger(dataset.storage)
    arrays = ClipArrays(ledger)
    arrays.read(ledger.array_names())
    rows = to_rows(dataset.index.select(_COLUMNS))
    items = []
    for number, row in enumerate(rows):
        identity = clip_id(row["key"], row["sha256"])
        items.append(
            DedupItem(
                key=f"{uri}#{row['key']}",
                sha256=row["sha256"],
                source=row["source"],
                duration_s=row["duration_s"],
                quality=(),
                fingerprint=arrays.fingerprint(identity),
                embedding=stored_vector(dataset, number) if config.dedup.semantic.enabled else None,
                global_embedding=arrays.vector(identity),
            )
        )
    return items


def _opened(uri: str, config: CurateConfig) -> Dataset:
    try:
        dataset = open_dataset(uri, config.storage)
        curate = dataset.manifest.config.get("curate")
    except RunError as error:
        raise UsageError(f"dedup.evaluation or dedup.older: {error}") from error
    if (
        config.dedup.perceptual.enabled
        and dataset.index.num_rows
        and not Ledger(dataset.storage).array_names()
    ):
        raise UsageError(
            f"{uri} has no fingerprints in its .ledger; curate that dataset again, or set"
            " dedup.perceptual.enabled=false"
        )
    embed = curate.get("embed") if isinstance(curate, dict) else None
    if config.dedup.semantic.enabled and embed != config.content()["embed"]:
        raise UsageError(
            f"{uri} was embedded otherwise than `embed` asks for; embed both alike, or set"
            " dedup.semantic.enabled=false"
        )
    return dataset


def _filtered(record: Record, stage: str, twin: Duplicate) -> Record:
    return replace(
        record, state="filtered", stage=stage, reason=twin.reason, score=twin.score, threshold=twin.threshold
    )
