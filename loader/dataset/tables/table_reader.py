"""Tables of a dataset: whole where they are small, else by parts or by the rows and columns that are asked for."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset.listed import check_listed, explain_missing, read_listed
from reelweave.loader.dataset.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from reelweave.loader.dataset.schema import FURTHER_TABLES, INDEX, TABLES, Row
from reelweave.loader.dataset.tables.checks import TableChecks, problems, row_count
from reelweave.loader.dataset.tables.parquet import (
    GROUP_ROWS,
    find_sorted,
    read_batches,
    read_rows,
    read_table,
    to_rows,
)
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.storage.base import Storage

_ROWS_AROUND = 1 << 15


class TableReader:
    """Tables of a finished dataset.

    Args:
        storage: storage of the dataset.
        without: columns of the index that `index` and `row` leave out.

    Attributes:
        storage: storage of the dataset.
        without: see above.
        manifest: content of ``manifest.json``.
    """

    _seen: str | None = None
    """Version of the manifest when it was last compared."""

    _around: tuple[int, pa.Table] | None = None
    """Rows of a large index around the last one that was asked for, and the first of them."""

    def __init__(self, storage: Storage, without: Collection[str] = ()) -> None:
        self.storage, self.without = storage, frozenset(without)
        self.manifest: Manifest = read_manifest(storage)

    @cached_property
    def index(self) -> pa.Table:
        """Content of ``index.parquet``: one row per sample, sorted by key (``reelweave.loader.dataset.schema.INDEX``).

        It is read whole; of a large one `table_parts`, `column`, `rows_at` and `row` read what is asked for.
        """
        return self._table(
            "index", [name for name in INDEX.names if name not in self.without] if self.without else None
        )

    @cached_property
    def accounting(self) -> pa.Table:
        """Content of ``accounting.parquet``: one row per span (``reelweave.loader.dataset.schema.ACCOUNTING``)."""
        return self._table("accounting")

    @cached_property
    def scores(self) -> pa.Table:
        """Content of ``scores.parquet``: one row per clip that was cut (``reelweave.loader.dataset.schema.SCORES``)."""
        return self.read_scores()

    def read_scores(self) -> pa.Table:
        """Read `scores` without keeping them: their maps are the largest column of all tables."""
        return self._table("scores")

    @cached_property
    def row_numbers(self) -> dict[str, int]:
        """Number of the index row by key."""
        return {key: row for row, key in enumerate(self.column("key").to_pylist())}

    def row(self, row_number: int) -> Row:
        """Return one row of the index, with maps as dicts; of a large one the rows around it are kept for the next."""
        if self._at_once:
            return to_rows(self.index.slice(row_number, 1))[0]
        first, held = self._around or (row_number, INDEX.empty_table())
        if not first <= row_number < first + len(held):
            first = row_number - row_number % _ROWS_AROUND
            rows = np.arange(first, min(first + _ROWS_AROUND, self.manifest.totals.samples))
            held = self.rows_at(rows, [name for name in INDEX.names if name not in self.without])
            checks = TableChecks(
                "index", self.storage.uri(self.manifest.table("index").path), self.manifest, first
            )
            checks.add(held)
            _refuse(checks.problems())
            self._around = first, held
        return to_rows(held.slice(row_number - first, 1))[0]

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the index; that of a large index is read each time."""
        if self._at_once and name not in self.without:
            return self.index.column(name)
        return self.read_columns("index", [name]).column(name)

    def rows_where(self, name: str, column: str, value: str) -> list[Row]:
        """Return the rows of a table with a value in a column, with maps as dicts; arguments as of `table_parts`."""
        return [
            row
            for table in self._parts(name)
            for row in to_rows(table.filter(pc.equal(table.column(column), value)))
        ]

    def _parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the checked rows of a table, in order; a small one is kept."""
        rows = row_count(name, self.manifest) or row_count("accounting", self.manifest)
        small = rows is not None and rows <= GROUP_ROWS
        return iter([getattr(self, name)]) if small or name in self.__dict__ else self.table_parts(name)

    def read_columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of a table, without the others and without keeping them; arguments as of `table_parts`."""
        empty = pa.schema([TABLES[name].field(column) for column in columns]).empty_table()
        # Pages have their own checksums; the file's checksum would need all of its bytes.
        return pa.concat_tables([empty, *self.table_parts(name, columns)])

    def table_parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read a table by parts, in its order, without keeping them; whole rows are checked on the way.

        Args:
            name: "index", "accounting" or "scores".
            columns: columns to read; None for all.

        Raises:
            RunError: the table is damaged, or contradicts itself or the manifest.
        """
        entry = self.manifest.table(name)
        where, rows = self.storage.uri(entry.path), row_count(name, self.manifest)
        checks = TableChecks(name, where, self.manifest) if columns is None else None
        if checks is not None:
            with self.same_revision():
                check_listed(self.storage, entry, where)
        with self._open_table(entry) as file:
            for batch in read_batches(file, entry.size, where, TABLES[name], rows, columns):
                table = pa.Table.from_batches([batch])
                if checks is not None:
                    checks.add(table)
                if checks is None or not checks.wrong:
                    yield table
        if checks is not None:
            _refuse(checks.problems())

    def further_parts(self, name: str) -> Iterator[pa.Table] | None:
        """Return a table that a dataset may lack, such as "transitions", by parts; None where it does.

        Raises:
            RunError: while it is read: the table is damaged.
        """
        entry = self.manifest.tables.get(name)
        return None if entry is None else self._further_parts(entry, FURTHER_TABLES[name])

    def _further_parts(self, entry: FileEntry, schema: pa.Schema) -> Iterator[pa.Table]:
        where = self.storage.uri(entry.path)
        with self.same_revision():
            check_listed(self.storage, entry, where)
        with self._open_table(entry) as file:
            for batch in read_batches(file, entry.size, where, schema, None):
                yield pa.Table.from_batches([batch])

    def row_number(self, key: str) -> int | None:
        """Return the row of the index with a key; None if there is none.

        Of a large index only the keys of one row group are read.
        """
        if self._at_once:
            return self.row_numbers.get(key)
        entry = self.manifest.table("index")
        with self._open_table(entry) as file:
            return find_sorted(file, self.storage.uri(entry.path), "key", key)

    def rows_at(self, row_numbers: IndexArray, columns: Sequence[str]) -> pa.Table:
        """Return some columns of some rows of the index; of a large index only their row groups are read.

        Args:
            row_numbers: int64 [n], rows of the index in any order.
            columns: names of the columns.
        """
        if self._at_once and self.without.isdisjoint(columns):
            return self.index.select(columns).take(pa.array(row_numbers))
        entry = self.manifest.table("index")
        with self._open_table(entry) as file:
            return read_rows(file, self.storage.uri(entry.path), row_numbers, columns)

    @property
    def _at_once(self) -> bool:
        """True if the index is small, or was read before."""
        return self.manifest.totals.samples <= GROUP_ROWS or "index" in self.__dict__

    def _table(self, name: str, columns: Sequence[str] | None = None, check: bool = True) -> pa.Table:
        entry = self.manifest.table(name)
        where, rows = self.storage.uri(entry.path), row_count(name, self.manifest)
        table = read_table(self._file(entry), entry.size, where, TABLES[name], rows, columns)
        if check:
            _refuse(problems(name, table, where, self.manifest))
        return table

    def _file(self, entry: FileEntry) -> bytes:
        with self.same_revision():
            return read_listed(self.storage, entry, self.storage.uri(entry.path))

    @contextmanager
    def same_revision(self) -> Iterator[None]:
        """Say of an error that the dataset has changed, where that is why: later revisions use names of the first."""
        try:
            yield
        except MachineError:
            raise
        except RunError:
            self._refuse_changed()
            raise

    @contextmanager
    def _open_table(self, entry: FileEntry) -> Iterator[BinaryIO]:
        """Open one version of a table whose checksum is not compared, and which is that of this revision."""
        with explain_missing(self.storage.uri(entry.path)), self.storage.open(entry.path) as file:
            self._refuse_changed()
            yield file

    def _refuse_changed(self) -> None:
        """Raise a `RunError` if tables of a later revision may lie under the names of this one, the first."""
        if self.manifest.revision:
            return
        now = self.storage.stat(MANIFEST)
        if now is not None and now.version == self._seen:
            return
        if now is None or read_manifest(self.storage) != self.manifest:
            raise RunError(f"{self.storage.root} was changed just now; run the same command again")
        self._seen = now.version


def _refuse(problems: Iterator[str]) -> None:
    if wrong := next(problems, None):
        raise RunError(f"{wrong}; run `reelweave verify` for all that is wrong")
