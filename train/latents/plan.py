"""Samples of a version with latents, and the shards that hold them: numbers of rows, which stay in the index."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset import Row
from reelweave.loader.dataset.tables.shard_rows import TableRows


class StoredParts(NamedTuple):
    """Columns of what a version stores of each sample.

    Attributes:
        bucket: int64 [n], number of its bucket; -1: it fits none and keeps its metadata alone.
        views: int64 [n], number of encoded frame selections; 0: the clip is stored and encoded on the fly.
        context: bool [n], True if its caption is encoded.
        clip: bool [n], True if its clip is stored.
        size: int64 [n], approximate bytes.
    """

    bucket: IndexArray
    views: IndexArray
    context: NDArray[np.bool_]
    clip: NDArray[np.bool_]
    size: IndexArray

    def at(self, indices: IndexArray) -> "StoredParts":
        """Return what is stored of some of the samples."""
        columns = (self.bucket[indices], self.views[indices], self.context[indices], self.clip[indices])
        return StoredParts(*columns, self.size[indices])


@dataclass(frozen=True)
class PlannedSample:
    """One sample of the new version.

    Attributes:
        row: row of the source's index.
        bucket: frames, height and width in training; None: it fits no bucket.
        views: number of encoded frame selections.
        context: True if its caption is encoded.
        clip: True if its clip is stored.
    """

    row: Row
    bucket: tuple[int, int, int] | None
    views: int
    context: bool
    clip: bool


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """Samples of one shard, in order.

    Attributes:
        number: place of the shard among all.
        rows: int64 [n], rows of its samples in the source's index.
        stored: what is stored of each.
        buckets: frames, height and width of every bucket.
    """

    number: int
    rows: IndexArray
    stored: StoredParts
    buckets: tuple[tuple[int, int, int], ...]

    @property
    def id(self) -> str:
        """Identifier from its number and contents; the source's index belongs to the configuration."""
        digest = hashlib.sha256()
        for column in (self.rows, *self.stored):
            digest.update(column.tobytes())
        return f"{self.number:06d}-{digest.hexdigest()[:16]}"

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return int(self.stored.size.sum())

    def samples(self, index: pa.Table) -> Iterator[PlannedSample]:
        """Yield the planned samples of this shard in their order.

        Args:
            index: rows of the source's index at ``rows``.
        """
        bucket, views, context, clip, _ = (column.tolist() for column in self.stored)
        for i, row in enumerate(TableRows(index)):
            size = None if bucket[i] < 0 else self.buckets[bucket[i]]
            yield PlannedSample(row, size, views[i], context[i], clip[i])
