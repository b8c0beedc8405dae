"""Rows of a dataset that a selection chooses, with the number of samples that it leaves out for want of a value."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.blend.selection.config import GroupSplit, Quota, Selection
from reelweave.loader.blend.selection.names import FieldName, field_name, read_field, unknown_name
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import redact_uri

_DIGEST_CHARS = 16
_HASH_SPACE = 2**64


class Chosen(NamedTuple):
    """Samples that a selection chooses.

    Attributes:
        rows: int64 [n], rising index rows.
        samples: number of all samples.
        unknown: number of samples for which a missing value decides the condition.
        groupless: number of samples without a value that names their group: they are in train, and in no quota.
        groups: number of groups of the split; 0 without one.
        grouped: number of samples in these groups, of those that fulfil the condition.
    """

    rows: IndexArray
    samples: int
    unknown: int
    groupless: int
    groups: int
    grouped: int


def choose(
    dataset: Dataset, selection: Selection, split: str | None = None, among: Flags | None = None
) -> Chosen:
    """Return the rows that a selection chooses. One process of a machine computes them for all.

    Args:
        dataset: the dataset.
        selection: the selection.
        split: split of the dataset to choose among, as its index says; None for all samples.
        among: bool [N], True for the rows to choose among; None for all.

    Raises:
        UsageError: no sample has a field that it names.
    """
    if among is not None:
        return _choose(dataset, selection, split, among)

    def make() -> dict[str, NDArray[np.int64]]:
        chosen = _choose(dataset, selection, split, None)
        return {"rows": chosen.rows, "counts": np.array(chosen[1:], np.int64)}

    arrays = dataset.node.arrays(_file_of(dataset.fingerprint, selection, split), make)
    return Chosen(arrays["rows"], *arrays["counts"].tolist())


def remembered_rows(
    dataset: Dataset, revision: int, selection: Selection, split: str | None
) -> IndexArray | None:
    """Return the rows that a selection chose in an earlier revision, if this machine drew from it; else None.

    Args:
        dataset: the dataset, in a later revision.
        revision: number of the earlier revision.
        selection: the selection.
        split: split of the dataset, as of `choose`.
    """
    fingerprint = dataset.fingerprint_of(revision)
    held = None if fingerprint is None else dataset.node.held_arrays(_file_of(fingerprint, selection, split))
    return None if held is None else held["rows"]


def _file_of(fingerprint: str, selection: Selection, split: str | None) -> str:
    content = json.dumps([split, selection.to_json()])
    return f"{fingerprint}.choice-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def rows_digest(rows: IndexArray) -> str:
    """Return the beginning of the SHA-256 of rising rows, by which a state knows what was chosen."""
    return hashlib.sha256(np.ascontiguousarray(rows, "<i8").tobytes()).hexdigest()[:_DIGEST_CHARS]


def _choose(dataset: Dataset, selection: Selection, split: str | None, among: Flags | None) -> Chosen:
    tally, quota = _Tally(dataset, selection), selection.quota and _QuotaGroups(selection.quota)
    masks, first, samples = [np.zeros(0, np.bool_)], 0, 0
    columns = tuple(dict.fromkeys((*selection.columns, "split")))
    for table in dataset.table_parts("index", columns):
        part = slice(first, first + len(table))
        first = part.stop
        eligible = np.ones(len(table), np.bool_) if among is None else among[part].copy()
        if split is not None:
            eligible &= _flags(pc.equal(table.column("split"), split))
        samples += int(eligible.sum())
        mask = tally.passes(table, eligible)
        masks.append(mask)
        # A sample may lack the group of the split and that of the quota.
        lacking = tally.lacking_group
        if quota:
            lacking = lacking | quota.add(table, mask, part.start)
        tally.groupless += int(lacking.sum())
    tally.refuse_unknown()
    chosen = np.concatenate(masks)
    if quota:
        chosen[quota.beyond()] = False
    counts = (samples, tally.unknown, tally.groupless, tally.count_groups(), tally.grouped)
    return Chosen(np.flatnonzero(chosen), *counts)


class _Tally:
    """Rows that pass conditions and split, part by part, and what is counted on the way."""

    def __init__(self, dataset: Dataset, selection: Selection) -> None:
        self._dataset, self._selection = dataset, selection
        named = dict.fromkeys((*selection.names, *selection.groupings))
        self._lacking = [name for name in named if name.home != "column"]
        self.unknown = self.groupless = self.grouped = 0
        self.lacking_group = np.zeros(0, np.bool_)  # rows of the last part without a group of the split
        self._group_hashes = [np.zeros(0, np.uint64)]

    def passes(self, table: pa.Table, eligible: Flags) -> Flags:
        """Return for each row of the next part whether it is eligible and passes."""
        for name in self._lacking.copy():
            if any(len(values) > values.null_count for values in _all_values(name, table)):
                self._lacking.remove(name)
        mask, self.lacking_group = eligible, np.zeros(len(table), np.bool_)
        if self._selection.where:
            verdicts = [condition.passes(table) for condition in self._selection.where]
            verdict = verdicts[0]
            for other in verdicts[1:]:
                verdict = pc.and_kleene(verdict, other)
            self.unknown += int((mask & _flags(pc.is_null(verdict))).sum())
            mask &= _flags(pc.fill_null(verdict, False))
        if split := self._selection.split:
            self.grouped += int(mask.sum())
            mask &= self._in_part(split, table, mask)
        return mask

    def _in_part(self, split: GroupSplit, table: pa.Table, mask: Flags) -> Flags:
        """Return for each row whether its group is in the part that is drawn; groups of rows of the mask count."""
        values = group_values(field_name(split.by), table)
        groupless = _flags(pc.is_null(values))
        self.lacking_group = groupless & mask
        self.grouped -= int(self.lacking_group.sum())
        rows = np.flatnonzero(mask & ~groupless)
        hash_R = hash_values(split.seed, values.take(pa.array(rows)))
        self._group_hashes.append(np.unique(hash_R))
        is_val = np.zeros(len(table), np.bool_)
        is_val[rows] = hash_R < _limit(split)
        return is_val if split.part == "val" else ~is_val

    def count_groups(self) -> int:
        """Return the number of groups of the split, by their hashes."""
        return len(np.unique(np.concatenate(self._group_hashes)))

    def refuse_unknown(self) -> None:
        """Refuse a name that no sample has.

        Raises:
            UsageError: there is one; names what the samples have.
        """
        if self._dataset.manifest.totals.samples == 0:
            return
        if self._lacking:
            why = unknown_name(self._lacking[0], *_names_of(self._dataset))
            words = self._selection.words
            raise UsageError(f"{redact_uri(self._dataset.storage.root)}: {why} ({words})")


class _QuotaGroups:
    """Samples of each group, of which those with the lowest hashes are drawn."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._name = field_name(quota.by)
        self._rows = [np.zeros(0, np.int64)]
        self._groups = [np.zeros(0, np.uint64)]
        self._hashes = [np.zeros(0, np.uint64)]

    def add(self, table: pa.Table, mask: Flags, first: int) -> Flags:
        """Take the next part; return which of its samples have no group."""
        values = group_values(self._name, table)
        has_group = _flags(pc.is_valid(values))
        members = np.flatnonzero(mask & has_group)
        chosen = pa.array(members)
        self._groups.append(hash_values(0, values.take(chosen)))
        self._hashes.append(hash_values(self._quota.seed, table.column("key").take(chosen)))
        self._rows.append(first + members)
        return mask & ~has_group

    def beyond(self) -> IndexArray:
        """Return the rows behind the first samples of their group, by hash."""
        rows, groups = np.concatenate(self._rows), np.concatenate(self._groups)
        hashes = np.concatenate(self._hashes)
        order = np.lexsort((hashes, groups))
        starts = np.flatnonzero(np.diff(groups[order], prepend=~groups[order[:1]]))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
        beyond: IndexArray = rows[order[rank >= self._quota.samples]]
        return beyond


def group_values(name: FieldName, table: pa.Table) -> pa.ChunkedArray:
    """Return the value of a field that groups samples, as text; null where a sample lacks it."""
    if name.home:
        return read_field(name, table).cast(pa.string())
    texts, scores = (read_field(name.read_as(kind), table) for kind in ("text", "number"))
    return pc.coalesce(texts, scores.cast(pa.string()))


def in_val(split: GroupSplit, value: str) -> bool:
    """Return whether a group is in val, by the hash of its value alone: data that is added moves no group."""
    return _hash(split.seed, value) < int(_limit(split))


def _limit(split: GroupSplit) -> np.uint64:
    """Return the hash below which a group is in val."""
    return np.uint64(split.share * _HASH_SPACE)


def hash_values(seed: int, values: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return the hash of each text, none of which is null; equal ones are hashed once."""
    encoded = values.combine_chunks().dictionary_encode()
    hash_U = np.array([_hash(seed, value) for value in encoded.dictionary.to_pylist()], np.uint64)
    hashes: NDArray[np.uint64] = hash_U[np.asarray(encoded.indices, np.int64)]
    return hashes


def _hash(seed: int, value: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{value}".encode()).digest()[:8], "big")


def _all_values(name: FieldName, table: pa.Table) -> Sequence[Any]:
    is_known = name.home or name.kind is not None
    homes = [name] if is_known else [name.read_as("number"), name.read_as("text")]
    return [read_field(home, table) for home in homes]


def _names_of(dataset: Dataset) -> tuple[set[str], set[str]]:
    """Return the names of all scores and attributes of a dataset."""
    scores, attributes = set[str](), set[str]()
    for table in dataset.table_parts("index", ("scores", "attributes")):
        scores.update(_map_names(table.column("scores")))
        attributes.update(_map_names(table.column("attributes")))
    return scores, attributes


def _map_names(column: pa.ChunkedArray) -> Iterator[str]:
    for chunk in column.chunks:
        begin, end = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        yield from chunk.keys.slice(begin, end - begin).unique().to_pylist()


def _flags(column: Any) -> Flags:
    return np.array(
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy(), np.bool_
    )
