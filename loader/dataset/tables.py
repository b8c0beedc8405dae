"""Rows to parquet bytes and back, the same bytes for the same rows."""

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.schema import Row


def to_table(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows as a table of ``schema``; a dict becomes a map column with sorted keys."""
    plain = [
        {name: sorted(value.items()) if isinstance(value, dict) else value for name, value in row.items()}
        for row in rows
    ]
    return pa.Table.from_pylist(plain, schema=schema)


def to_parquet(rows: Iterable[Row], schema: pa.Schema) -> bytes:
    """Rows as the bytes of a parquet file."""
    return parquet_bytes(to_table(rows, schema))


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of a parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def from_parquet(data: bytes) -> pa.Table:
    """The table in the bytes of a parquet file."""
    # pq.read_table leaves threads that abort short processes at their exit.
    return pq.ParquetFile(pa.BufferReader(data)).read()


def to_rows(table: pa.Table) -> list[Row]:
    """The table's rows; map columns come back as dicts."""
    rows: list[Row] = table.to_pylist(maps_as_pydicts="strict")
    return rows
