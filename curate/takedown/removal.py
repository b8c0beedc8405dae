"""Take-down of a source or a sample from the shards, the tables, the ledger and the report, with a record.

Only shards that hold part of it are rewritten; the dataset changes in one step, by its manifest.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.foreign.leave_out import leave_out
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, from_json
from reelweave.curate.ledger.redo import carry_redo
from reelweave.curate.takedown.forget import forget
from reelweave.curate.takedown.takedown import TakeDowns, empty_record, overlap, take_down_reason
from reelweave.loader.dataset import (
    ACCOUNTING,
    SCORES,
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
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.dataset.publishing.publication import read_once
from reelweave.loader.dataset.schema import FURTHER_TABLES
from reelweave.loader.dataset.tables.parquet import to_rows, to_table
from reelweave.loader.dataset.tables.shard_rows import TableRows, as_table
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage, hold_lease

REPORT = "report/"

_OF_COPIES = ("source", "start_s", "end_s", "key", "state", "duplicate_of")
_OF_SPANS = ("key", "source", "source_sha256", "start_s", "end_s")

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Removed:
    """Result of one take-down.

    Attributes:
        manifest: New manifest of the dataset.
        samples: Number of removed samples.
        shards_rewritten: Number of shards that held a removed sample.
        copies: Keys of clips that were no samples, but copies of removed ones; they were removed too.
        overlapping: Keys of other clips that show seconds of removed ones; they were removed too.
        left: Keys of samples that stay although a removed clip was a duplicate of them.
        clean: False when the storage may keep older versions of objects and does not let them be deleted.
        unknown: Keys of a list that are those of no sample.
        foreign: True over tars of others, which were not rewritten and still hold the samples' bytes.
    """

    manifest: Manifest
    samples: int
    shards_rewritten: int
    copies: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    clean: bool = True
    unknown: tuple[str, ...] = ()
    foreign: bool = False


def remove(storage: Storage, *removals: Removal) -> Removed:
    """Take down sources or keys, every copy or duplicate of the removed clips, and clips that show the same seconds.

    Over tars of others nothing is rewritten: a new revision of the index leaves the samples out. Of several
    removals those that nothing is known of are counted; a single one is refused.

    Copies were left out of the dataset in favour of the removed sample; none of them may replace it. A
    repeated take-down changes nothing, but completes an interrupted one. The report is removed, since it
    shows the removed clips.

    Raises:
        UsageError: The dataset has no such source or key.
        RunError: There is no finished dataset, or another process is writing to it.
    """
    with hold_lease(storage, "reelweave remove") as held:
        dataset = Dataset(held)
        requested, unknown = _known_removals(dataset, removals)
        if not requested:
            return Removed(
                dataset.manifest, 0, 0, unknown=unknown, foreign=dataset.manifest.foreign is not None
            )
        done = _leave_out(dataset, requested) if dataset.manifest.foreign else _remove(dataset, requested)
        return replace(done, unknown=unknown)


def _known_removals(dataset: Dataset, removals: Sequence[Removal]) -> tuple[list[Removal], tuple[str, ...]]:
    """Return the removals of what the dataset holds or held, and the keys of the others.

    Raises:
        UsageError: The dataset has no such source or key, where one was asked for.
    """
    named: dict[str, set[str]] = {"key": set(), "source": set()}
    for table in dataset.table_parts("accounting", ("source", "key")):
        for name, present in named.items():
            requested = pa.array([getattr(removal, name) for removal in removals], pa.string()).drop_null()
            present |= set(
                table.column(name).filter(pc.is_in(table.column(name), value_set=requested)).to_pylist()
            )
    if dataset.manifest.foreign is not None:  # whose samples may name sources of their own, in the index
        named["source"] |= set(dataset.column("source").unique().to_pylist())
    valid_removals = [
        removal for removal in removals if removal.key in named["key"] or removal.source in named["source"]
    ]
    unknown = [removal for removal in removals if removal not in valid_removals]
    if unknown and len(removals) == 1:
        what = f"source {unknown[0].source}" if unknown[0].source else f"key {unknown[0].key}"
        raise UsageError(
            f"{dataset.storage.uri(MANIFEST)} knows no {what}; see accounting.parquet for what it holds"
        )
    return valid_removals, tuple(removal.key or removal.source or "" for removal in unknown)


def _leave_out(dataset: Dataset, removals: Sequence[Removal]) -> Removed:
    """Publish a revision over tars of others that leaves samples out."""
    storage, before = dataset.storage, dataset.manifest
    earlier = {(old.source, old.key) for old in before.removals}
    # How many samples each take-down meets, by key or by source.
    counts: Counter[tuple[str, str]] = Counter()
    for name in ("key", "source"):
        column = dataset.column(name)
        requested = pa.array([getattr(removal, name) for removal in removals], pa.string()).drop_null()
        values = column.filter(pc.is_in(column, value_set=requested)).to_pylist()
        counts.update((name, value) for value in values)
    # A sample whose metadata names its source is still one of its own in the accounting, by tar and key.
    kept_parts = (
        table.filter(pc.equal(table["state"], "kept")) for table in dataset.table_parts("accounting")
    )
    in_tars = Counter(source for table in kept_parts for source in table["source"].to_pylist())
    # Take-downs that were made before are not made again.
    new = [
        removal.model_copy(
            update={
                "samples": counts["key", removal.key or ""]
                + max(counts["source", removal.source or ""], in_tars[removal.source or ""])
            }
        )
        for removal in removals
        if (removal.source, removal.key) not in earlier
    ]
    manifest = leave_out(storage, before, new) if new else before
    storage.delete_tree(REPORT)
    storage.sweep()
    return Removed(manifest, before.totals.samples - manifest.totals.samples, 0, foreign=True)


def _remove(dataset: Dataset, requested: Sequence[Removal]) -> Removed:
    """Take down while holding the dataset's lease."""
    storage = dataset.storage
    keys, copies, overlapping = _keys_and_copies(dataset, requested)

    def removal_mask(table: pa.Table) -> Mask:
        return _named_rows(table, requested) | _is_in(table.column("key"), keys)

    # What leaves: rows of the accounting by names and keys, and samples of shards, which are written anew
    # without them.
    left_out = [
        row
        for table in dataset.table_parts("accounting")
        for row in to_rows(table.filter(pa.array(removal_mask(table))))
    ]
    shards, removed_rows, rewritten = _without(dataset, removal_mask)
    samples = len(removed_rows)
    of_key = Counter(row["key"] for row in removed_rows)
    # One record for each name that was given, and for each copy and overlapping clip that goes with it.
    new = [
        *(
            removal.model_copy(
                update={
                    "samples": samples if len(requested) == 1 else of_key[removal.key],
                    "span": _span(left_out, removed_rows, removal.key),
                }
            )
            for removal in requested
        ),
        *(_of_copy(row, requested[0]) for row in copies.values()),
        *(
            _of_overlapping(key, requested[0], of_key[key] if len(requested) > 1 else 0)
            for key in sorted(overlapping)
        ),
    ]
    earlier = {(old.source, old.key) for old in dataset.manifest.removals}
    added = [removal for removal in new if removal.samples or (removal.source, removal.key) not in earlier]
    removals = [*dataset.manifest.removals, *added]
    # The tables of the next revision, read part by part as they are written.
    accounted = _account_removed(dataset.table_parts("accounting"), removal_mask, TakeDowns(tuple(removals)))
    scored = (table.filter(pa.array(~removal_mask(table))) for table in dataset.table_parts("scores"))
    further = {
        name: read_once((table.filter(pa.array(~removal_mask(table))) for table in parts), schema)
        for name, schema in FURTHER_TABLES.items()
        if (parts := dataset.further_parts(name)) is not None
    }
    content = Content(
        accounting=read_once(accounted, ACCOUNTING),
        scores=read_once(scored, SCORES),
        further=further,
        config=dataset.manifest.config,
        versions=dataset.manifest.versions,
        removals=removals,
        latents=dataset.latents,
        files=dataset.latent_files(),
    )
    # The manifest makes it visible; what is behind it removes traces, and may be repeated after a kill.
    carry_redo(Ledger(storage), dataset.manifest.revision)
    manifest = publish(storage, shards, content, dataset.manifest)
    storage.delete_tree(REPORT)
    forget(Ledger(storage), TakeDowns(tuple(removals)))
    storage.sweep()
    clean = storage.drop_versions()
    # Kept samples of which a row that leaves was a duplicate: they still show what it showed.
    removed_keys = {row["key"] for row in removed_rows}
    remaining = sorted(
        key
        for key in {row["duplicate_of"] for row in left_out if row["duplicate_of"]} - removed_keys
        if dataset.row_number(key) is not None
    )
    others = tuple(sorted(copies)), tuple(sorted(overlapping))
    return Removed(manifest, samples, rewritten, *others, tuple(remaining), clean)


def _named_rows(table: pa.Table, removals: Sequence[Removal]) -> Mask:
    """Return which rows are of the sources or the keys that take-downs name."""
    named = np.zeros(len(table), np.bool_)
    for name in {"key", "source"} & set(table.column_names):
        values = pa.array([getattr(removal, name) for removal in removals], pa.string()).drop_null()
        named |= _is_in(table.column(name), values)
    return named


def _mask(flags: pa.ChunkedArray) -> Mask:
    return np.asarray(pc.fill_null(flags, False), np.bool_)


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> Mask:
    return _mask(pc.is_in(column, value_set=values))


def _keys_and_copies(
    dataset: Dataset, requested: Sequence[Removal]
) -> tuple[pa.Array, dict[str, Row], set[str]]:
    """Return what a take-down removes.

    Returns:
        The keys of all removed clips; a row of each copy or duplicate in other sources, by key; and the keys of clips
        that overlap removed ones, as listed segments do.
    """
    # Clips that were named.
    keys: set[str] = set()
    for table in dataset.table_parts("accounting", ("source", "key")):
        removed_samples = table.filter(pa.array(_named_rows(table, requested)))
        keys |= set(removed_samples.column("key").drop_null().to_pylist())
    copies: dict[str, Row] = {}
    overlapping: set[str] = set()
    spanned = pa.array([removal.key for removal in requested], pa.string()).drop_null()
    # Clips that show the same, until nothing new is found: a copy may overlap another clip.
    while True:
        all_keys = pa.array(sorted(keys), pa.string())
        near = [
            row
            for table in dataset.table_parts("accounting", _OF_COPIES)
            for row in to_rows(table.filter(pa.array(_near(table, requested, all_keys))))
            if row["key"] not in overlapping
        ]
        more = {row["key"]: row for row in near if row["key"] not in copies}
        copies |= more
        spanned = pa.concat_arrays([spanned, pa.array(more, pa.string())])
        beside = set(_overlapping(dataset, spanned)) - keys - more.keys() if len(spanned) else set()
        if not more and not beside:
            return all_keys, copies, overlapping
        overlapping |= beside
        keys |= more.keys() | beside


def _overlapping(dataset: Dataset, keys: pa.Array) -> Iterator[str]:
    """Yield the keys of samples that show seconds of some samples, in the same source or in one of the same bytes.

    The index has their spans; the accounting counts seconds that clips share once, as those of the first.
    """
    columns = {name: dataset.column(name) for name in _OF_SPANS}
    spans: dict[str, list[RemovedSpan]] = defaultdict(list)
    for row in _rows(columns, _is_in(columns["key"], keys)):
        for name in {row["source"], row["source_sha256"]} - {""}:
            spans[name].append(_span_of(row))
    named = pa.array(list(spans), pa.string())
    for row in _rows(columns, _is_in(columns["source"], named) | _is_in(columns["source_sha256"], named)):
        removed = spans.get(row["source"], []) + spans.get(row["source_sha256"], [])
        if any(overlap(span, row["start_s"], row["end_s"]) for span in removed):
            yield row["key"]


def _rows(columns: Mapping[str, pa.ChunkedArray], mask: Mask) -> list[Row]:
    return to_rows(pa.table({name: values.filter(pa.array(mask)) for name, values in columns.items()}))


def _near(accounting: pa.Table, requested: Sequence[Removal], keys: pa.Array) -> Mask:
    """Return which rows are copies or duplicates of removed clips, and not what the take-down names."""
    key = accounting.column("key")
    duplicate_N = _mask(pc.equal(accounting.column("state"), "duplicate"))
    near_N = _is_in(key, keys) | (duplicate_N & _is_in(accounting.column("duplicate_of"), keys))
    return ~_named_rows(accounting, requested) & _mask(pc.is_valid(key)) & near_N


def _of_copy(row: Row, removal: Removal) -> Removal:
    reason = f"a copy of what was {take_down_reason(removal)}"
    return Removal(key=row["key"], date=removal.date, reason=reason, samples=0, span=_span_of(row))


def _of_overlapping(key: str, removal: Removal, samples: int) -> Removal:
    """Return the take-down of a clip that shows removed seconds; what else it shows may stay in other clips."""
    reason = f"{removal.reason} (of another clip, with which it shares seconds)"
    return Removal(key=key, date=removal.date, reason=reason, samples=samples)


def _span_of(row: Row) -> RemovedSpan:
    return RemovedSpan(source=row["source"], start_s=row["start_s"], end_s=row["end_s"])


def _span(left_out: list[Row], removed_rows: list[Row], key: str | None) -> RemovedSpan | None:
    """Return the time span of the clip; rows of samples have the digest of their source, too."""
    for row in (*removed_rows, *left_out):
        if key is not None and row["key"] == key and row["start_s"] is not None:
            return RemovedSpan(**{name: row[name] for name in RemovedSpan.model_fields if name in row})
    return None


def _without(dataset: Dataset, gone: Callable[[pa.Table], Mask]) -> tuple[list[ShardRecord], list[Row], int]:
    """Return all shards of the next revision, rows of removed samples, and the number of rewritten shards."""
    present = dataset.shards()
    shard_number = next_shard_number(present)
    shards: list[ShardRecord] = []
    removed_rows: list[Row] = []
    rewritten = 0
    for shard in present:
        rows = as_table(shard.rows)
        gone_n = gone(rows)
        if not gone_n.any():
            shards.append(shard)
            continue
        rewritten += 1
        removed_rows += to_rows(rows.filter(pa.array(gone_n)))
        if not gone_n.all():
            remaining = TableRows(rows.filter(pa.array(~gone_n)))
            shards.append(write_shard(dataset.storage, shard_number, map(dataset.sample_of, remaining)))
            shard_number += 1
    return shards, removed_rows, rewritten


def _account_removed(
    accounting: Iterable[pa.Table], gone: Callable[[pa.Table], Mask], down: TakeDowns
) -> Iterator[pa.Table]:
    """Yield the accounting after the take-down: one row for a source, or the span's own row for a sample.

    Args:
        accounting: All rows, in parts.
        gone: Mask of rows of removed clips.
        down: All take-downs.
    """
    accounted: set[str] = set()
    for table in accounting:
        gone_N = gone(table)
        if not gone_N.any():
            yield table
            continue
        rows: list[Row] = []
        indices: list[int] = []
        left_out = to_rows(table.filter(pa.array(gone_N)))
        # A source that was taken down has one row, whatever its clips were.
        for index, row in zip(np.flatnonzero(gone_N).tolist(), left_out, strict=True):
            record = from_json(Record, row)
            if removal := down.sources.get(record.source):
                if record.source in accounted:
                    continue
                accounted.add(record.source)
                rows.append(empty_record(Record(record.source), removal).columns(row))
            else:
                rows.append(empty_record(record, down.keys[row["key"]]).columns(row))
            indices.append(index)
        # New rows stand where the first of the old ones stood, so that the table stays sorted.
        stay = table.filter(pa.array(~gone_N))
        order = np.argsort(
            np.concatenate([np.flatnonzero(~gone_N), np.array(indices, np.int64)]), kind="stable"
        )
        yield pa.concat_tables([stay, to_table(rows, ACCOUNTING)]).take(pa.array(order))
