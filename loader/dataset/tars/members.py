"""Locations of one member of every sample, as columns instead of a dict per row."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset.tars.media import MEDIA, media_rank


@dataclass(frozen=True, eq=False)
class Members:
    """Locations of one member of each sample, by row of the index.

    Attributes:
        shards: paths of the shards.
        shard: int32 [rows], place in ``shards``; -1 for samples without the member.
        offset: int64 [rows], byte offset of the content in its shard.
        size: int64 [rows], size in bytes.
    """

    shards: tuple[str, ...]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def place(self, row_number: int) -> tuple[str, int, int] | None:
        """Return shard, offset and size of a row's member, or None."""
        shard = self.shard.item(row_number)
        if shard < 0:
            return None
        return self.shards[shard], self.offset.item(row_number), self.size.item(row_number)

    def rows(self) -> NDArray[np.int64]:
        """Return the rows of samples with the member, rising."""
        return np.flatnonzero(self.shard >= 0)


def members(index: pa.Table, suffix: str) -> Members:
    """Locate the members with a suffix, from the columns ``shard`` and ``members`` of an index."""
    listed = index.column("members").combine_chunks()
    flat = pc.list_flatten(listed)
    rows = np.asarray(pc.list_parent_indices(listed), np.int64)
    chosen = np.flatnonzero(np.asarray(pc.equal(flat.field("suffix"), suffix)))
    return _locate_members(index, rows[chosen], flat.take(pa.array(chosen)))


def media_members(index: pa.Table) -> Members:
    """Locate every sample's media member, of any suffix (``reelweave.loader.dataset.tars.media``)."""
    listed = index.column("members").combine_chunks()
    flat = pc.list_flatten(listed)
    rows = np.asarray(pc.list_parent_indices(listed), np.int64)
    suffixes = flat.field("suffix").dictionary_encode()
    rank_U = np.array([media_rank(suffix) for suffix in suffixes.dictionary.to_pylist()], np.int64)
    rank = rank_U[np.asarray(suffixes.indices)] if len(rank_U) else np.empty(0, np.int64)
    ordered = np.lexsort((rank, rows))  # stable, so the first in the tar wins among equals
    chosen = ordered[np.unique(rows[ordered], return_index=True)[1]]
    chosen = chosen[rank[chosen] < len(MEDIA)]
    return _locate_members(index, rows[chosen], flat.take(pa.array(chosen)))


def join_members(parts: Iterable[Members]) -> Members:
    """Return the locations of members of parts of an index that follow each other."""
    number_of: dict[str, int] = {}
    columns: list[tuple[NDArray[Any], ...]] = [
        (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    ]
    for part in parts:
        # A row of -1 takes the last of the numbers.
        shard_indices = [number_of.setdefault(path, len(number_of)) for path in part.shards]
        columns.append((np.array([*shard_indices, -1], np.int32)[part.shard], part.offset, part.size))
    shard, offset, size = (np.concatenate(some) for some in zip(*columns, strict=True))
    return Members(tuple(number_of), shard, offset, size)


def _locate_members(index: pa.Table, rows: NDArray[np.int64], regions: pa.StructArray) -> Members:
    """Return locations of the members of samples in ``rows``, one for each."""
    names = index.column("shard").combine_chunks().dictionary_encode()
    shard = np.full(len(index), -1, np.int32)
    offset, size = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    shard[rows] = np.asarray(names.indices)[rows]
    offset[rows] = np.asarray(regions.field("offset"))
    size[rows] = np.asarray(regions.field("size"))
    return Members(tuple(names.dictionary.to_pylist()), shard, offset, size)
