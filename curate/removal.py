"""Taking a source or one sample down: out of the shards, the tables and the ledger, and recorded.

Only shards that hold something of it are written again; the dataset changes in one step, by its manifest.
"""

from collections.abc import Callable
from dataclasses import dataclass

from curate.ledger import Ledger
from loader.dataset import (
    Content,
    Dataset,
    Manifest,
    Removal,
    Row,
    ShardRecord,
    next_shard_number,
    publish,
    shard_path,
    write_shard,
)
from loader.dataset.manifest import MANIFEST
from loader.dataset.tables import to_rows
from loader.errors import UsageError
from loader.storage import Storage

FILTERED, STAGE = "filtered", "removal"


@dataclass(frozen=True)
class Removed:
    """What a take-down did.

    Attributes:
        manifest: of the dataset now.
        samples: taken out.
        shards_rewritten: that held one of them and others besides, or only such.
    """

    manifest: Manifest
    samples: int
    shards_rewritten: int


def remove(storage: Storage, removal: Removal) -> Removed:
    """Takes down ``removal.source`` or ``removal.key``; doing it twice changes nothing the second time.

    Raises:
        UsageError: the dataset knows no such source or key.
        RunError: there is no finished dataset, or somebody else changed it meanwhile.
    """
    dataset = Dataset(storage)
    if dataset.manifest.foreign:
        raise UsageError(
            f"{storage.root} is an index over tars that somebody else wrote, which are never changed; take it out"
            " of the tars and run `reelweave index` again"
        )
    gone = _matcher(removal)
    accounting = to_rows(dataset.accounting)
    if not any(gone(row) for row in accounting):
        what = f"source {removal.source}" if removal.source else f"key {removal.key}"
        raise UsageError(f"{storage.uri(MANIFEST)} knows no {what}; see accounting.parquet for what it holds")
    shards, rewritten = _without(dataset, gone)
    samples = sum(gone(row) for row in to_rows(dataset.index))
    recorded = removal.model_copy(update={"samples": samples})
    known = any((old.source, old.key) == (removal.source, removal.key) for old in dataset.manifest.removals)
    content = Content(
        accounting=_accounted(accounting, gone, removal),
        scores=[row for row in to_rows(dataset.scores) if not gone(row)],
        config=dataset.manifest.config,
        versions=dataset.manifest.versions,
        removals=[*dataset.manifest.removals, *([] if known and not samples else [recorded])],
        latents=dataset.latents,
        files=dataset.latent_files(),
    )
    manifest = publish(storage, shards, content, dataset.manifest)
    _purge(Ledger(storage), {row["key"] for row in accounting if gone(row) and row["key"]})
    return Removed(manifest, samples, rewritten)


def _matcher(removal: Removal) -> Callable[[Row], bool]:
    if removal.source is not None:
        return lambda row: row["source"] == removal.source
    return lambda row: row["key"] == removal.key


def _without(dataset: Dataset, gone: Callable[[Row], bool]) -> tuple[list[ShardRecord], int]:
    """All shards of the next revision, those that lose a sample written anew, and how many those are."""
    present = dataset.shards()
    number = next_shard_number(present)
    shards = []
    rewritten = 0
    for shard in present:
        left = [row for row in shard.rows if not gone(row)]
        if len(left) == len(shard.rows):
            shards.append(shard)
            continue
        rewritten += 1
        if left:
            samples = (dataset.sample(dataset.row_numbers[row["key"]]) for row in left)
            shards.append(write_shard(dataset.storage, shard_path(number), samples))
            number += 1
    return shards, rewritten


def _accounted(rows: list[Row], gone: Callable[[Row], bool], removal: Removal) -> list[Row]:
    """The accounting after the take-down: one row for a whole source, the span's own row for one sample.

    A duplicate of a sample that is gone stays what it is, but points nowhere any more, so it says so.
    """
    reason = f"taken down on {removal.date}: {removal.reason}"
    result: list[Row] = []
    said: set[str] = set()
    keys = {row["key"] for row in rows if gone(row) and row["state"] == "kept"}
    for row in rows:
        if row["state"] == "duplicate" and row["duplicate_of"] in keys and not gone(row):
            row = _closed(row, f"duplicate of {row['duplicate_of']}, which was {reason}")
        elif gone(row) and removal.key is not None:
            row = _closed(row, reason)
        elif gone(row):
            if row["source"] in said:
                continue
            said.add(row["source"])
            row = _closed({**row, "start_s": None, "end_s": None, "key": None}, reason)
        result.append(row)
    return result


def _closed(row: Row, reason: str) -> Row:
    closed = {"state": FILTERED, "stage": STAGE, "reason": reason}
    return {**row, **closed, "score": None, "threshold": None, "duplicate_of": None}


def _purge(ledger: Ledger, keys: set[str]) -> None:
    """Takes out of the ledger whatever was made of the clips with these keys."""

    def of_them(identity: str) -> bool:
        return identity.split("-", 1)[0] in keys

    ledger.drop_clips(filter(of_them, ledger.staged_clips()))
    for stage in ("embed", "captions"):
        for name in ledger.fingerprints(stage):
            ledger.forget(stage, name, of_them)
    ledger.forget_arrays(of_them)
