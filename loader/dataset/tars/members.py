"""Where one member of every sample lies, as columns: what a reader needs, without a row of the index as a dict."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loader.dataset.tars.media import MEDIA, media_rank


@dataclass(frozen=True, eq=False)
class Members:
    """One member of each sample, by row of the index.

    Attributes:
        shards: paths.
        shard: int32 [rows], place in ``shards``; -1 where the sample has no such member.
        offset: int64 [rows], of the content in its shard.
        size: int64 [rows], bytes.
    """

    shards: tuple[str, ...]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def place(self, row_number: int) -> tuple[str, int, int] | None:
        """Shard, offset and size of one member, or None."""
        shard = self.shard.item(row_number)
        if shard < 0:
            return None
        return self.shards[shard], self.offset.item(row_number), self.size.item(row_number)

    def rows(self) -> NDArray[np.int64]:
        """Rows of the samples that have it, rising."""
        return np.flatnonzero(self.shard >= 0)


def members(index: pa.Table, suffix: str) -> Members:
    """The members with a suffix, from the columns ``shard`` and ``members`` of an index."""
    listed = index.column("members").combine_chunks()
    flat = pc.list_flatten(listed)
    rows = np.asarray(pc.list_parent_indices(listed), np.int64)
    chosen = np.flatnonzero(np.asarray(pc.equal(flat.field("suffix"), suffix)))
    return _placed(index, rows[chosen], flat.take(pa.array(chosen)))


def media_members(index: pa.Table) -> Members:
    """The member of every sample that holds its pictures, whatever its suffix (``loader.dataset.tars.media``)."""
    listed = index.column("members").combine_chunks()
    flat = pc.list_flatten(listed)
    rows = np.asarray(pc.list_parent_indices(listed), np.int64)
    suffixes = flat.field("suffix").dictionary_encode()
    rank_U = np.array([media_rank(suffix) for suffix in suffixes.dictionary.to_pylist()], np.int64)
    rank = rank_U[np.asarray(suffixes.indices)] if len(rank_U) else np.empty(0, np.int64)
    ordered = np.lexsort((rank, rows))  # stable: of equals the first in the tar
    chosen = ordered[np.unique(rows[ordered], return_index=True)[1]]
    chosen = chosen[rank[chosen] < len(MEDIA)]
    return _placed(index, rows[chosen], flat.take(pa.array(chosen)))


def _placed(index: pa.Table, rows: NDArray[np.int64], found: pa.StructArray) -> Members:
    """Members of the samples in ``rows``, one for each."""
    names = index.column("shard").combine_chunks().dictionary_encode()
    shard = np.full(len(index), -1, np.int32)
    offset, size = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    shard[rows] = np.asarray(names.indices)[rows]
    offset[rows] = np.asarray(found.field("offset"))
    size[rows] = np.asarray(found.field("size"))
    return Members(tuple(names.dictionary.to_pylist()), shard, offset, size)
