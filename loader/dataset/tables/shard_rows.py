"""Index rows of shards as tables: a row as a dict takes ten times the memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import pyarrow as pa

from reelweave.loader.dataset.schema import INDEX, Row
from reelweave.loader.dataset.tables.parquet import to_rows, to_table

CRC32 = "sample_crc32"

WITH_CRC32 = INDEX.append(pa.field(CRC32, pa.uint32(), nullable=False))
MAYBE_CRC32 = INDEX.append(pa.field(CRC32, pa.uint32()))
"""Schema of rows of several shards: null where a shard's checksums are not known."""

_AT_ONCE = 256


class TableRows(Sequence[Row]):
    """Index rows that are made as they are asked for.

    Args:
        table: columns of the index, and perhaps `CRC32`; or a function that reads it each time.
        rows: number of rows, where they are read each time.
    """

    def __init__(self, table: pa.Table | Callable[[], pa.Table], rows: int | None = None) -> None:
        self._table = table
        self._rows = len(self.table) if rows is None else rows

    @property
    def table(self) -> pa.Table:
        return self._table if isinstance(self._table, pa.Table) else self._table()

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        chosen = range(len(self))[index]
        if isinstance(chosen, int):
            return to_rows(self.table.slice(chosen, 1))[0]
        return TableRows(self.table.take(pa.array(chosen, pa.int64())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __iter__(self) -> Iterator[Row]:
        table = self.table
        for first in range(0, len(self), _AT_ONCE):
            yield from to_rows(table.slice(first, _AT_ONCE))


def as_table(rows: Sequence[Row]) -> pa.Table:
    """Return index rows as a table; with `CRC32` where all of them have it."""
    if isinstance(rows, TableRows):
        return rows.table
    return to_table(rows, WITH_CRC32 if all(CRC32 in row for row in rows) else INDEX)


def read_back(table: pa.Table) -> pa.Table:
    """Return index rows that were stored in Parquet, which names the elements of lists and maps otherwise."""
    return table.cast(WITH_CRC32 if CRC32 in table.column_names else INDEX)
