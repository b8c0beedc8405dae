"""Take-down of a source or a sample from the shards, the tables, the ledger and the report, with a record.

Only shards that hold part of it are rewritten; the dataset changes in one step, by its manifest.
"""

from collections.abc import Callable
from dataclasses import dataclass

from curate.ledger import Ledger
from curate.records import Record, from_json
from curate.takedown.forget import forget
from curate.takedown.takedown import TakeDowns, emptied, take_down_reason
from loader.dataset import (
    Content,
    Dataset,
    Manifest,
    Removal,
    RemovedSpan,
    Row,
    ShardRecord,
    next_shard_number,
    publish,
    write_shard,
)
from loader.dataset.manifest import MANIFEST
from loader.dataset.tables.parquet import to_rows
from loader.errors import UsageError
from loader.storage import Storage, leased

REPORT = "report/"


@dataclass(frozen=True)
class Removed:
    """Result of one take-down.

    Attributes:
        manifest: New manifest of the dataset.
        samples: Number of removed samples.
        shards_rewritten: Number of shards that held a removed sample.
        copies: Keys of clips that were no samples, but copies of removed ones; they were removed too.
        left: Keys of samples that stay although a removed clip was a duplicate of them.
        clean: False when the storage may keep older versions of objects and does not let them be deleted.
    """

    manifest: Manifest
    samples: int
    shards_rewritten: int
    copies: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    clean: bool = True


def remove(storage: Storage, removal: Removal) -> Removed:
    """Take down ``removal.source`` or ``removal.key``, and every copy or duplicate of the removed clips.

    Copies were left out of the dataset in favour of the removed sample; none of them may replace it. A
    repeated take-down changes nothing, but completes an interrupted one. The report is removed, since it
    shows the removed clips.

    Raises:
        UsageError: The dataset has no such source or key.
        RunError: There is no finished dataset, or another process is writing to it.
    """
    with leased(storage, "reelweave remove") as held:
        return _remove(held, removal)


def _remove(storage: Storage, removal: Removal) -> Removed:
    """Take down while holding the dataset's lease."""
    dataset = Dataset(storage)
    if dataset.manifest.foreign:
        raise UsageError(
            f"{storage.root} is an index over tars of others, which are never changed; take it out"
            " of the tars and run `reelweave index` again"
        )
    accounting = to_rows(dataset.accounting)
    named = _matcher(removal)
    if not any(named(row) for row in accounting):
        what = f"source {removal.source}" if removal.source else f"key {removal.key}"
        raise UsageError(f"{storage.uri(MANIFEST)} knows no {what}; see accounting.parquet for what it holds")
    copies = _copies(accounting, named)
    keys = {row["key"] for row in accounting if named(row) and row["key"]} | copies.keys()

    def gone(row: Row) -> bool:
        return named(row) or row["key"] in keys

    taken = [row for row in to_rows(dataset.index) if gone(row)]
    samples = len(taken)
    shards, rewritten = _without(dataset, gone)
    new = [
        removal.model_copy(update={"samples": samples, "span": _span(accounting, taken, removal.key)}),
        *(_of_copy(row, removal) for row in copies.values()),
    ]
    known = {(old.source, old.key) for old in dataset.manifest.removals}
    added = [one for one in new if one.samples or (one.source, one.key) not in known]
    removals = [*dataset.manifest.removals, *added]
    content = Content(
        accounting=_accounted(accounting, gone, TakeDowns(tuple(removals))),
        scores=[row for row in to_rows(dataset.scores) if not gone(row)],
        config=dataset.manifest.config,
        versions=dataset.manifest.versions,
        removals=removals,
        latents=dataset.latents,
        files=dataset.latent_files(),
    )
    manifest = publish(storage, shards, content, dataset.manifest)
    storage.delete_tree(REPORT)
    forget(Ledger(storage), TakeDowns(tuple(removals)))
    storage.sweep()
    clean = storage.drop_versions()
    stay = {row["key"] for shard in shards for row in shard.rows}
    left = sorted({row["duplicate_of"] for row in accounting if gone(row)} & stay)
    return Removed(manifest, samples, rewritten, tuple(sorted(copies)), tuple(left), clean)


def _matcher(removal: Removal) -> Callable[[Row], bool]:
    if removal.source is not None:
        return lambda row: row["source"] == removal.source
    return lambda row: row["key"] == removal.key


def _copies(accounting: list[Row], named: Callable[[Row], bool]) -> dict[str, Row]:
    """Return a row of each clip of other sources that is a copy or duplicate of a removed one, by key."""
    found: dict[str, Row] = {}
    keys = {row["key"] for row in accounting if named(row) and row["key"]}
    while True:
        more = {
            row["key"]: row
            for row in accounting
            if row["key"]
            and not named(row)
            and row["key"] not in found
            and (row["key"] in keys or (row["state"] == "duplicate" and row["duplicate_of"] in keys))
        }
        if not more:
            return found
        found |= more
        keys |= more.keys()


def _of_copy(row: Row, removal: Removal) -> Removal:
    reason = f"a copy of what was {take_down_reason(removal)}"
    span = RemovedSpan(source=row["source"], start_s=row["start_s"], end_s=row["end_s"])
    return Removal(key=row["key"], date=removal.date, reason=reason, samples=0, span=span)


def _span(accounting: list[Row], taken: list[Row], key: str | None) -> RemovedSpan | None:
    """Return the time span of the clip; rows of samples have the digest of their source, too."""
    for row in (*taken, *accounting):
        if key is not None and row["key"] == key and row["start_s"] is not None:
            return RemovedSpan(**{name: row[name] for name in RemovedSpan.model_fields if name in row})
    return None


def _without(dataset: Dataset, gone: Callable[[Row], bool]) -> tuple[list[ShardRecord], int]:
    """Return all shards of the next revision, with rewritten ones, and the number of rewritten ones."""
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
            shards.append(write_shard(dataset.storage, number, samples))
            number += 1
    return shards, rewritten


def _accounted(rows: list[Row], gone: Callable[[Row], bool], down: TakeDowns) -> list[Row]:
    """Return the accounting after the take-down: one row for a source, or the span's own row for a sample."""
    result: list[Row] = []
    said: set[str] = set()
    for row in rows:
        if not gone(row):
            result.append(row)
            continue
        record = from_json(Record, row)
        if removal := down.sources.get(record.source):
            if record.source not in said:
                result.append(emptied(Record(record.source), removal).columns(row))
            said.add(record.source)
        else:
            result.append(emptied(record, down.keys[row["key"]]).columns(row))
    return result
