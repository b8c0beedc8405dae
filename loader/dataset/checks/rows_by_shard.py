"""Rows of an index by shard, whatever the order of their keys."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.dataset.manifest import Manifest, ShardEntry
from loader.dataset.schema import INDEX, Row
from loader.dataset.tables.parquet import to_rows
from loader.dataset.tables.row_parts import RowParts, parts_of
from loader.dataset.tables.shard_rows import CRC32

_SCHEMA = INDEX.append(pa.field(CRC32, pa.uint32()))


class RowsByShard:
    """Index rows that are added in the order of their keys, and given back shard by shard.

    Shards that follow each other in the manifest are in one part; a context that removes its files.

    Args:
        manifest: manifest of the dataset.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._shards = manifest.shards
        self._number_of = {shard.path: number for number, shard in enumerate(manifest.shards)}
        ends = np.cumsum([shard.samples for shard in manifest.shards])
        parts = parts_of(manifest.totals.samples)
        self._part_S = (ends - 1) * parts // max(1, manifest.totals.samples)
        self._part_S = np.clip(self._part_S, 0, parts - 1)
        self._parts = RowParts(_SCHEMA, parts)

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
        known = (
            pa.nulls(len(table), pa.uint32())
            if crc32 is None
            else pa.array(crc32[first : first + len(table)])
        )
        self._parts.add(table.append_column(_SCHEMA.field(CRC32), known), self._part_S[self._numbers(table)])

    def shards(self) -> Iterator[tuple[ShardEntry, list[Row]]]:
        """Yield each shard of the manifest with its rows by offset, with ``sample_crc32`` where it is known."""
        held, rows, starts = -1, _SCHEMA.empty_table(), np.zeros(0, np.int64)
        for number, shard in enumerate(self._shards):
            if (part := int(self._part_S[number])) != held:
                held, table = part, self._parts.read(part)
                numbers = self._numbers(table)
                order = np.lexsort((table.column("offset").to_numpy(), numbers))
                rows = table.take(pa.array(order))
                starts = np.searchsorted(numbers[order], np.arange(len(self._shards) + 1))
            own = rows.slice(starts[number], starts[number + 1] - starts[number])
            names = own.column_names if own.column(CRC32).null_count == 0 else INDEX.names
            yield shard, to_rows(own.select(names))

    def _numbers(self, table: pa.Table) -> NDArray[Any]:
        names = table.column("shard").combine_chunks().dictionary_encode()
        number_U = np.array([self._number_of[path] for path in names.dictionary.to_pylist()], np.int64)
        return number_U[names.indices.to_numpy()] if len(table) else np.zeros(0, np.int64)
