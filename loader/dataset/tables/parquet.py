"""Conversion of rows to deterministic parquet bytes and back, with checks of untrusted files."""

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset.schema import Row
from reelweave.loader.errors import RunError
from reelweave.loader.storage.steady import refuse_fault

GROUP_ROWS = 1 << 17
"""Most rows of a row group: a writer holds one."""

_BATCH_ROWS = 1 << 15
_ROWS_AT_ONCE = 1 << 12
_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
_ANY_BYTES, _MOST_RATIO = (
    256 << 20,
    1024,
)  # a table in memory, and over the bytes of its file where that is large


def to_table(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Convert rows to a table of ``schema``; a dict becomes a map column with sorted keys."""
    rest = map(_plain, rows)
    # Batches, because the converted rows take far more memory than their table.
    parts = [pa.Table.from_pylist(list(itertools.islice(rest, _ROWS_AT_ONCE)), schema=schema)]
    while batch := list(itertools.islice(rest, _ROWS_AT_ONCE)):
        parts.append(pa.Table.from_pylist(batch, schema=schema))
    return pa.concat_tables(parts).combine_chunks()


def _plain(row: Row) -> Row:
    return {name: sorted(value.items()) if isinstance(value, dict) else value for name, value in row.items()}


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=GROUP_ROWS, **_OPTIONS)
    return buffer.getvalue()


class ParquetWriter:
    """Writer of a table that comes part by part, with the bytes of `to_parquet` for the whole; a context.

    Rows of one row group are in memory at a time.

    Args:
        path: file to write.
        schema: columns of all parts.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, **_OPTIONS)
        self._held: list[pa.Table] = []
        self._rows = self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and (self._held or not self._written):
                self._write(pa.concat_tables([self._schema.empty_table(), *self._held]))
        finally:
            self._writer.close()

    def add(self, table: pa.Table) -> None:
        self._held.append(pa.Table.from_arrays(table.columns, schema=self._schema))
        self._rows += len(table)
        while self._rows >= GROUP_ROWS:
            joint = pa.concat_tables(self._held)
            self._held = []
            self._write(joint.slice(0, GROUP_ROWS))
            self._rows -= GROUP_ROWS
            # A copy: a slice would hold all of the part that it ends.
            self._held = [joint.slice(GROUP_ROWS).take(pa.array(np.arange(self._rows)))] if self._rows else []

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks())
        self._written += len(table)


def from_parquet(
    data: bytes | Path, columns: Sequence[str] | None = None, repeated: Sequence[str] = ()
) -> pa.Table:
    """Parse a parquet file of our own making, from its bytes or a file of this machine.

    Args:
        data: the file.
        columns: columns to read; None for all.
        repeated: leaves of columns, such as "scores.key_value.key", whose few different texts are read as a dictionary.
    """
    # pq.read_table leaves threads behind that abort short processes at their exit.
    file = _open_parquet(data)
    if repeated:
        columns_in_file = {file.schema.column(index).path for index in range(len(file.schema))}
        file = _open_parquet(
            data,
            metadata=file.metadata,
            read_dictionary=[name for name in repeated if name in columns_in_file],
        )
    return file.read(columns)


def batches_of_parquet(data: bytes | Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of such a file by parts."""
    file = _open_parquet(data)
    yield from file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)


def read_table(
    source: bytes | BinaryIO,
    size: int,
    where: str,
    schema: pa.Schema,
    rows: int | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Read an untrusted table, or some columns of it.

    Args:
        source: bytes of the file, or the file open for reading.
        size: size of the file in bytes.
        where: file name for messages.
        schema: schema of all columns.
        rows: required number of rows; None accepts any.
        columns: columns to read; None for all.

    Raises:
        RunError: the file is no parquet file, or has other columns or another number of rows. Or it contains
            a null or text that is not UTF-8, or expands to much more than its size.
    """
    names = list(schema.names if columns is None else columns)
    batches = list(read_batches(source, size, where, schema, rows, columns))
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names]))


def read_batches(
    source: bytes | BinaryIO,
    size: int,
    where: str,
    schema: pa.Schema,
    rows: int | None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield an untrusted table by parts, or some columns of it; arguments and errors as of `read_table`."""
    column_names, found_rows = list(schema.names if columns is None else columns), 0
    remaining_bytes = max(_ANY_BYTES, _MOST_RATIO * size)
    names = pa.schema([schema.field(name) for name in column_names])
    with _explain_damage(where):
        file = _open_parquet(source, page_checksum_verification=True)
        file_schema = file.schema_arrow
    # Columns and rows as promised, before any of them is unfolded.
    if not (file_schema.equals(schema) if columns is None else _has(file_schema, schema, columns)):
        file_columns = ", ".join(name[:40] for name in file_schema.names[:40])
        raise RunError(f"{where} has other columns than this format: {file_columns}")
    stated_rows = file.metadata.num_rows
    if rows is not None and stated_rows != rows:
        raise RunError(f"{where} has {stated_rows} rows, manifest.json counts {rows}")
    batches = file.iter_batches(_BATCH_ROWS, columns=column_names, use_threads=False)
    while True:
        with _explain_damage(where):
            batch = next(batches, None)
            if batch is None:
                break
            batch = pa.RecordBatch.from_arrays([batch.column(name) for name in column_names], schema=names)
            batch.validate(full=True)
        # A small file may unfold to any size; it is bounded by what a real table could have.
        remaining_bytes -= batch.nbytes
        found_rows += len(batch)
        if remaining_bytes < 0:
            raise RunError(f"{where} has {size} bytes and unfolds to far more; restore it from a copy")
        for name in column_names:
            if not schema.field(name).nullable and _null_inside(batch.column(name)):
                raise RunError(
                    f"{where}: column {name} has a row without a value; restore the file from a copy"
                )
        yield batch
    if found_rows != stated_rows:
        raise RunError(f"{where} has {found_rows} rows and says it has {stated_rows}")


def _open_parquet(source: bytes | Path | BinaryIO, **options: Any) -> pq.ParquetFile:
    # With pre_buffer, the default, all bytes that were read stay in memory until the file is closed.
    file = pa.BufferReader(source) if isinstance(source, bytes) else source
    return pq.ParquetFile(file, pre_buffer=False, **options)


@contextmanager
def _explain_damage(where: str) -> Iterator[None]:
    """Replace what Arrow says of a damaged file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError, UnicodeDecodeError) as error:
        refuse_fault(error, where)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{where} is no table that can be read ({reason[:200]}); restore it from a copy"
        ) from error


def find_sorted(file: BinaryIO, where: str, column: str, value: str) -> int | None:
    """Return the row of a value in a sorted column, by the bounds that row groups state; None if it is not there."""
    with _explain_damage(where):
        parquet, first = _open_parquet(file, page_checksum_verification=True), 0
        column_index = parquet.schema_arrow.get_field_index(column)
        for group in range(parquet.metadata.num_row_groups):
            facts = parquet.metadata.row_group(group)
            bounds = facts.column(column_index).statistics
            if bounds is None or not bounds.has_min_max or bounds.min <= value <= bounds.max:
                values = parquet.read_row_group(group, [column], use_threads=False).column(0)
                if (row := pc.index(values, value).as_py()) >= 0:
                    return first + int(row)
            first += facts.num_rows
    return None


def read_rows(file: BinaryIO, where: str, rows: IndexArray, columns: Sequence[str]) -> pa.Table:
    """Return some columns of some rows, in their order; row groups without any of them are not read.

    Args:
        file: file of the table.
        where: file name for messages.
        rows: numbers of the rows, int64 [n].
        columns: columns to read.
    """
    with _explain_damage(where):
        parquet = _open_parquet(file, page_checksum_verification=True)
        facts = parquet.metadata
        counts = [facts.row_group(group).num_rows for group in range(facts.num_row_groups)]
        firsts = np.cumsum([0, *counts])
        rising = np.sort(rows)
        if len(rows) and not 0 <= rising[0] <= rising[-1] < firsts[-1]:
            raise ValueError(f"it has {firsts[-1]} rows, and not one of number {rising[-1]}")
        parts = [parquet.schema_arrow.empty_table().select(columns)]
        for group in np.unique(np.searchsorted(firsts, rising, side="right") - 1).tolist():
            first, end = firsts[group], int(rising[np.searchsorted(rising, firsts[group + 1]) - 1]) + 1
            for batch in parquet.iter_batches(_BATCH_ROWS, [group], list(columns), use_threads=False):
                offsets = rising[slice(*np.searchsorted(rising, [first, first + len(batch)]))] - first
                if len(offsets):
                    parts.append(pa.Table.from_batches([batch]).select(columns).take(pa.array(offsets)))
                first += len(batch)
                if first >= end:
                    break
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.argsort(rows, kind="stable"))))


def to_rows(table: pa.Table) -> list[Row]:
    """Return the table's rows, with map columns as dicts.

    Raises:
        RunError: a map has a repeated key.
    """
    try:
        rows: list[Row] = table.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError) as error:
        raise RunError(f"a table of the dataset says one thing twice: {str(error)[:200]}") from error
    return rows


def _has(file_schema: pa.Schema, schema: pa.Schema, columns: Sequence[str]) -> bool:
    indices = {name: file_schema.get_field_index(name) for name in columns}  # -1 also for a repeated name
    return all(
        index >= 0 and file_schema.field(index).equals(schema.field(name)) for name, index in indices.items()
    )


def _null_inside(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if pa.types.is_map(array.type):
        return _null_inside(array.items)
    if pa.types.is_list(array.type):
        return _null_inside(array.flatten())
    if pa.types.is_struct(array.type):
        return any(_null_inside(array.field(index)) for index in range(array.type.num_fields))
    return False
