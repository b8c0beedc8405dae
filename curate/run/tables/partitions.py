"""Tables of clips by partition of their sources: one partition stays in memory, many lie on local disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from reelweave.curate.run.tables.columns import Rows, stack_tables, whole
from reelweave.loader.storage.scratch import Scratch

SOURCES = 4096
"""Sources of a partition, in the order of their URIs, so that partitions in turn are clips in order."""

_AT_ONCE = 1 << 16
_OF_EACH = 64
"""Rows that wait until they are written: so many, and so many for each partition."""

Number = TypeVar("Number", int, Rows)


def partition_count(sources: int) -> int:
    """Return the number of partitions of so many sources."""
    return max(1, -(-sources // SOURCES))


def partition_of(source_index: Number) -> Number:
    """Return the partition of the source with an index, or of many."""
    return source_index // SOURCES


class Partitions:
    """A table in partitions. Rows keep the order in which they were added.

    Args:
        count: Number of partitions.
        schema: Columns that every row has; others may follow.
        on_disk: Whether rows lie in files of a temporary folder, which is removed with this object.

    Attributes:
        count: See above.
    """

    def __init__(self, count: int, schema: pa.Schema, on_disk: bool) -> None:
        self.count, self._schema = count, schema
        self._folder = Scratch("reelweave-clips-") if on_disk else None
        self._tables: list[list[pa.Table]] = [[] for _ in range(count)]  # in memory
        self._parts = np.zeros(count, np.int32)  # tables of each
        self._waiting: list[tuple[pa.Table, Rows]] = []
        self._rows = 0

    @staticmethod
    def of(table: pa.Table) -> "Partitions":
        """Return a table as one partition in memory."""
        only = Partitions(1, table.schema, False)
        only.add(0, table)
        return only

    def __iter__(self) -> Iterator[pa.Table]:
        return map(self.read, range(self.count))

    def add(self, partition: int, table: pa.Table) -> None:
        """Add rows to a partition."""
        if len(table):
            self._flush()
            self._put(partition, table)

    def scatter(self, table: pa.Table, partitions: Rows) -> None:
        """Add each row to the partition with its index."""
        if not len(table):
            return
        self._waiting.append((table, partitions))
        self._rows += len(table)
        if self._rows >= max(_AT_ONCE, _OF_EACH * self.count):
            self._flush()

    def read(self, partition: int) -> pa.Table:
        """Return all rows of a partition."""
        return whole(self.tables(partition), self._schema)

    def stack(self, partition: int) -> pa.Table:
        """Return all rows of a partition, in as many pieces as were added."""
        return stack_tables(self.tables(partition), self._schema)

    def tables(self, partition: int) -> Iterator[pa.Table]:
        """Yield the rows of a partition, several at a time."""
        self._flush()
        if self._folder is None:
            yield from self._tables[partition]
        elif self._parts[partition]:
            path, first, end = str(self._path(partition)), 0, self._path(partition).stat().st_size
            while first < end:
                # Columns that nobody looks at are not read, and a mapping is gone with its table.
                with pa.memory_map(path) as file:
                    file.seek(first)
                    table = pa.ipc.open_stream(file).read_all()
                    first = file.tell()
                yield table

    def parts(self, partition: int) -> int:
        """Return how many tables a partition is made of."""
        self._flush()
        return int(self._parts[partition])

    def replace(self, partition: int, table: pa.Table) -> None:
        """Put rows in place of those of a partition."""
        self._flush()
        self._parts[partition] = 0
        if self._folder is None:
            self._tables[partition] = []
        else:
            self._path(partition).unlink(missing_ok=True)
        self.add(partition, table)

    def _flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if self.count == 1:
            for table, _ in waiting:
                self._put(0, table)
            return
        table = stack_tables([table for table, _ in waiting], self._schema)
        partitions = np.concatenate([partitions for _, partitions in waiting])
        if (np.diff(partitions) < 0).any():
            order = np.argsort(partitions, kind="stable")
            table, partitions = table.take(pa.array(order)), partitions[order]
        del waiting
        table = table.combine_chunks()  # what was taken is in one piece already
        present, starts = np.unique(partitions, return_index=True)
        for partition, start, end in zip(
            present.tolist(), starts.tolist(), [*starts[1:].tolist(), len(partitions)], strict=True
        ):
            self._put(partition, table.slice(start, end - start))

    def _put(self, partition: int, table: pa.Table) -> None:
        self._parts[partition] += 1
        if self._folder is None:
            self._tables[partition].append(table)
            return
        with self._path(partition).open("ab") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)

    def _path(self, partition: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, f"{partition}.arrows")
