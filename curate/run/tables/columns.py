"""Steps over tables that pyarrow has no function for."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_AT_ONCE = 1 << 16

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array."""
    chunked = table.column(name)
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def mask_of(values: pa.Array) -> Mask:
    """Return truth values as numpy's; null is false."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)


def equal(table: pa.Table, name: str, value: object) -> Mask:
    """Return where a column has a value."""
    return mask_of(pc.equal(column(table, name), value))


def places_in(values: pa.Array, among: pa.Array) -> Rows:
    """Return the first place of each value among others, or -1."""
    indices = pc.fill_null(pc.index_in(values, value_set=among), -1)
    return np.asarray(indices.to_numpy(), np.int64)


def whole(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return all rows of tables; a column that one of them lacks is null there. One table alone is not copied."""
    filled = [table for table in tables if len(table)]
    return filled[0] if len(filled) == 1 else stack_tables(filled, schema).combine_chunks()


def stack_tables(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return `whole` without a copy: each column is in as many pieces as there are tables."""
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")


def copy_rows(table: pa.Table) -> pa.Table:
    """Return the rows in memory of their own; a slice written as bytes holds some of its neighbours' in gaps."""
    return pa.concat_tables([table.slice(0, 0), table]).combine_chunks()


def take_rows(table: pa.Table, rows: Rows) -> pa.Table:
    """Return rows of a table; a row of nulls for -1."""
    return table.take(pa.array(rows, mask=rows < 0))


def filter_rows(table: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows where a mask is true."""
    return table if mask.all() else table.filter(pa.array(mask))


def texts_of(values: Iterable[str]) -> pa.Array:
    """Return texts as an array; few of them are Python's at a time."""
    rest, parts = iter(values), [pa.array([], pa.string())]
    while some := list(itertools.islice(rest, _AT_ONCE)):
        parts.append(pa.array(some, pa.string()))
    return pa.concat_arrays(parts)


def repeat_value(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return one value many times; pyarrow's own function knows no empty maps."""
    return pa.array([value], kind).take(pa.array(np.zeros(count, np.int64)))


def replace_values(
    table: pa.Table, mask: Mask, values: Mapping[str, Sequence[Any] | pa.Array | object]
) -> pa.Table:
    """Return the table with other values in the rows where a mask is true.

    Args:
        table: The table.
        mask: Rows to change.
        values: By column: a sequence or an array with a value for each changed row, or one value for all of them.
    """
    count = int(mask.sum())
    if not count:
        return table
    where = pa.array(mask)
    for name, value in values.items():
        kind = table.schema.field(name).type
        if isinstance(value, pa.Array):
            new = value.cast(kind)
        elif isinstance(value, list | np.ndarray):
            new = pa.array(value, kind)
        else:
            new = repeat_value(value, kind, count)
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), _put(column(table, name), mask, where, new))
    return table


def _put(values: pa.Array, mask: Mask, where: pa.Array, new: pa.Array) -> pa.Array:
    if not pa.types.is_nested(values.type):
        return pc.replace_with_mask(values, where, new)
    # There is no such function for maps.
    rows = np.arange(len(mask))
    rows[mask] = len(mask) + np.arange(int(mask.sum()))
    return pa.concat_arrays([values, new]).take(pa.array(rows))
