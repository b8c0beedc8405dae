"""Rows of an index by shard, whatever the order of their keys."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.dataset.manifest import ShardEntry
from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.dataset.tables.row_parts import RowParts, part_count
from reelweave.loader.dataset.tables.shard_rows import CRC32, MAYBE_CRC32


class RowsByShard:
    """Index rows that are added in the order of their keys, and given back shard by shard.

    Shards that follow each other in the manifest are in one part, of which one is in memory. Files are removed at the
    end of the context, or with this object.

    Args:
        shards: shards of the manifest.

    Attributes:
        counts: int64 [shards], number of rows that were added of each.
    """

    def __init__(self, shards: Sequence[ShardEntry]) -> None:
        self._number_of = {shard.path: index for index, shard in enumerate(shards)}
        ends = np.cumsum([shard.samples for shard in shards])
        samples = int(ends[-1]) if len(ends) else 0
        parts = part_count(samples)
        self._part_S = np.clip((ends - 1) * parts // max(1, samples), 0, parts - 1)
        self._parts = RowParts(MAYBE_CRC32, parts)
        self.counts = np.zeros(len(shards), np.int64)
        self._held, self._rows, self._starts = -1, MAYBE_CRC32.empty_table(), np.zeros(0, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.__exit__(kind, error, trace)

    def add(self, table: pa.Table, crc32: NDArray[np.uint32] | None, first: int) -> None:
        """Add rows of the index that name listed shards.

        Args:
            table: columns of the index.
            crc32: checksums of all samples; None if unknown.
            first: row of the index of the first one.
        """
        crc32_n = (
            pa.nulls(len(table), pa.uint32())
            if crc32 is None
            else pa.array(crc32[first : first + len(table)])
        )
        shard_indices = self._numbers(table)
        self.counts += np.bincount(shard_indices, minlength=len(self.counts))
        self._parts.add(table.append_column(MAYBE_CRC32.field(CRC32), crc32_n), self._part_S[shard_indices])

    def table(self, index: int) -> pa.Table:
        """Return the rows of a shard by offset, with the column `CRC32` where it is known; rows are added before.

        Args:
            index: place of the shard in the manifest.
        """
        if (part := int(self._part_S[index])) != self._held:
            self._rows = MAYBE_CRC32.empty_table()  # before the next part is read
            table = self._parts.read(part)
            shard_indices = self._numbers(table)
            order = np.lexsort((table.column("offset").to_numpy(), shard_indices))
            self._rows, self._held = table.take(pa.array(order)), part
            self._starts = np.searchsorted(shard_indices[order], np.arange(len(self._part_S) + 1))
        rows = self._rows.slice(self._starts[index], self._starts[index + 1] - self._starts[index])
        return rows if rows.column(CRC32).null_count == 0 else rows.select(INDEX.names)

    def _numbers(self, table: pa.Table) -> NDArray[Any]:
        names = table.column("shard").combine_chunks().dictionary_encode()
        number_U = np.array([self._number_of[path] for path in names.dictionary.to_pylist()], np.int64)
        return number_U[names.indices.to_numpy()] if len(table) else np.zeros(0, np.int64)
