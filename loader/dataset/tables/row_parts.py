"""Rows divided among files of a temporary folder, so that rows which belong together are read back together."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.storage.scratch import Scratch

ROWS = 1 << 16
"""Rows of a part that are held in memory at a time."""

_MOST_PARTS = 4096
_HELD_BYTES = 128 << 20


def part_count(rows: int) -> int:
    """Return the number of parts for so many rows."""
    return min(_MOST_PARTS, -(-rows // ROWS)) or 1


def hash_parts(column: pa.ChunkedArray, parts: int) -> NDArray[np.int64]:
    """Return a part for each value [N], the same one for equal values of this process."""
    values = column.to_numpy() if parts > 1 else np.zeros(len(column), np.int64)
    return np.fromiter(map(hash, values), np.int64, len(values)) % parts


class RowParts:
    """Tables of one schema, divided among ``parts``; a context that removes its files.

    Rows that fit in memory are kept there, and no file is written.

    Args:
        schema: columns of all tables.
        parts: number of parts.
    """

    def __init__(self, schema: pa.Schema, parts: int) -> None:
        self._schema, self.parts = schema, parts
        self._held: list[pa.Table] = []
        self._places: list[NDArray[np.integer[Any]]] = []
        self._bytes = 0
        self._folder: Path | None = None
        self._written: set[int] = set()
        self._open = ExitStack()
        self._sorted: tuple[pa.Table, Sequence[int]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, table: pa.Table, part_N: NDArray[np.integer[Any]]) -> None:
        """Add rows, each to its part; columns of other names are left out."""
        table = pa.Table.from_arrays(table.select(self._schema.names).columns, schema=self._schema)
        self._held.append(table)
        self._places.append(part_N)
        self._bytes += table.nbytes
        if self._bytes >= _HELD_BYTES and self.parts > 1:
            self._flush()

    def read(self, part: int) -> pa.Table:
        """Return the rows of a part in the order in which they were added; no rows are added after that."""
        if self._sorted is None:
            if self._written:
                self._flush()
            self._sorted = self._by_part()
            self._held = []
        table, starts = self._sorted
        if part not in self._written:
            return table.slice(starts[part], starts[part + 1] - starts[part])
        tables = []
        with pa.OSFile(self._path(part)) as file:
            while file.tell() < file.size():
                tables.append(pa.ipc.open_stream(file).read_all())
        return pa.concat_tables(tables)

    def _by_part(self) -> tuple[pa.Table, Sequence[int]]:
        """Return the held rows by part, and the first row of each part."""
        if not self._held:
            return self._schema.empty_table(), [0] * (self.parts + 1)
        table = pa.concat_tables(self._held)
        if self.parts == 1:
            return table, [0, len(table)]
        part_N = np.concatenate(self._places)
        starts = np.concatenate([[0], np.cumsum(np.bincount(part_N, minlength=self.parts))])
        return table.take(pa.array(np.argsort(part_N, kind="stable"))), starts.tolist()

    def _flush(self) -> None:
        table, starts = self._by_part()
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        for part in range(self.parts):
            if rows := starts[part + 1] - starts[part]:
                # Opened each time: processes may have few files open, and there may be many parts.
                with (
                    pa.OSFile(self._path(part), "ab") as file,
                    pa.ipc.new_stream(file, self._schema, options=options) as writer,
                ):
                    writer.write_table(table.slice(starts[part], rows).combine_chunks())
                self._written.add(part)
        self._held, self._places, self._bytes = [], [], 0

    def _path(self, part: int) -> str:
        if self._folder is None:
            name = self._open.enter_context(Scratch("reelweave-parts-"))
            self._folder = Path(name)
        return str(self._folder / f"{part}.arrow")
