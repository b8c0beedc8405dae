"""Checks of table contents over whole columns, before any offset is used."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset.manifest import Manifest
from reelweave.loader.dataset.schema import STATES

SPLITS = ("train", "val")
_NEEDED = (("kept", "key"), ("kept", "start_s"), ("duplicate", "duplicate_of"), ("duplicate", "start_s"))
_MOST_PIXELS = 2**16 - 1
_ROWS_AT_ONCE = 1 << 16


@dataclass
class Wrong:
    """Rows that fail one check.

    Attributes:
        row: number of the first one.
        name: its key, or its source.
        what: fault of these rows.
        said: its values, in words.
        rows: number of such rows.
    """

    row: int
    name: str
    what: str
    said: str
    rows: int

    def __str__(self) -> str:
        more = f", and so in {self.rows - 1} more rows" if self.rows > 1 else ""
        return f"row {self.row}, {self.name!r}: {self.what}{self.said}{more}"


class TableChecks:
    """Checks of one table of a dataset, which is added by parts in its order.

    Args:
        name: "index", "accounting" or "scores".
        where: file name for messages.
        manifest: manifest of the dataset.
        first: row of the table that is added first.
    """

    def __init__(self, name: str, where: str, manifest: Manifest, first: int = 0) -> None:
        self._name, self._where, self._manifest = name, where, manifest
        self._check = {"index": _index, "accounting": _accounting, "scores": _scores}[name]
        self._rows = first
        self._last: pa.Scalar | None = None
        self._wrong: dict[str, Wrong] = {}
        self._states: Counter[str] = Counter()

    @property
    def wrong(self) -> bool:
        """True if a part has a wrong row."""
        return bool(self._wrong)

    def add(self, table: pa.Table) -> None:
        """Check some rows, with the columns of the format, and without nulls where the format forbids them."""
        for violation in self._check(table, self._manifest, self._last):
            earlier = self._wrong.setdefault(
                violation.what, replace(violation, row=violation.row + self._rows, rows=0)
            )
            earlier.rows += violation.rows
        self._rows += len(table)
        if self._name == "index" and len(table):
            self._last = table.column("key")[len(table) - 1]
        if self._name == "accounting":
            self._states.update(
                {
                    count["values"]: count["counts"]
                    for count in table.column("state").value_counts().to_pylist()
                }
            )

    def problems(self, sources: int | None = None) -> Iterator[str]:
        """Yield the problems of all parts, in words.

        Args:
            sources: number of different sources of an accounting; None if unknown.
        """
        yield from (f"{self._where}: {wrong}" for wrong in self._wrong.values())
        if self._name == "accounting":
            totals, counts = self._manifest.totals, {state: self._states[state] for state in STATES}
            if counts != totals.accounting:
                yield f"{self._where}: it counts {counts}, manifest.json {totals.accounting}"
            if sources is not None and sources != totals.sources:
                yield f"{self._where}: it has {sources} sources, manifest.json counts {totals.sources}"


def problems(name: str, table: pa.Table, where: str, manifest: Manifest) -> Iterator[str]:
    """Yield the problems of one table of a dataset, in words; arguments as of `TableChecks`."""
    checks = TableChecks(name, where, manifest)
    for first in range(0, len(table), _ROWS_AT_ONCE):
        checks.add(table.slice(first, _ROWS_AT_ONCE))
    sources = pc.count_distinct(table.column("source")).as_py() if name == "accounting" else None
    return checks.problems(sources)


def row_count(name: str, manifest: Manifest) -> int | None:
    """Return the required number of rows of a table; None if the manifest does not count them."""
    totals = manifest.totals
    return {"index": totals.samples, "accounting": sum(totals.accounting.values())}.get(name)


def _index(table: pa.Table, manifest: Manifest, last: pa.Scalar | None) -> Iterator[Wrong]:
    keys = table.column("key").combine_chunks()
    neighbours = keys if last is None else pa.concat_arrays([pa.array([last.as_py()], pa.string()), keys])
    if len(neighbours) > 1:
        before, after = neighbours[:-1], neighbours[1:]
        first = len(keys) - len(neighbours)  # the row of the first pair, which may lie in the part before
        yield from _first(_flags(pc.equal(before, after)), neighbours, "its key occurs twice", first=first)
        yield from _first(
            _flags(pc.greater(before, after)), neighbours, "its key comes after the next one", first=first
        )
    yield from _first(_flags(pc.equal(keys, "")), keys, "its key is empty")
    size_of = {shard.path: shard.size for shard in manifest.shards}
    shards = table.column("shard").combine_chunks().dictionary_encode()
    known_U = [size_of.get(path, -1) for path in shards.dictionary.to_pylist()]
    end_N = np.array(known_U, np.int64)[np.asarray(shards.indices)] if len(keys) else np.empty(0, np.int64)
    yield from _first(end_N < 0, keys, "its shard is not listed in manifest.json")
    offset_N, size_N = _numbers(table, "offset"), _numbers(table, "size")
    outside_N = (offset_N < 0) | (size_N < 1) | (offset_N > end_N - size_N)
    yield from _first(outside_N & (end_N >= 0), keys, "it does not lie within its shard", offset_N, size_N)
    yield from _members(table, keys, offset_N, size_N)
    for name, lower, upper in (
        ("frames", 1, 2**31),
        ("height", 1, _MOST_PIXELS),
        ("width", 1, _MOST_PIXELS),
        ("text_tokens", 0, 2**31),
        ("duration_s", 0.0, np.finfo(np.float64).max),
        ("fps", np.finfo(np.float32).tiny, np.finfo(np.float32).max),
    ):
        values_N = _numbers(table, name)
        yield from _first(
            ~((values_N >= lower) & (values_N <= upper)), keys, f"it has an impossible {name}", values_N
        )
    start_N, end_N = _numbers(table, "start_s"), _numbers(table, "end_s")
    yield from _first(_no_span(start_N, end_N), keys, "it has an impossible span", start_N, end_N)
    unknown = pc.invert(pc.is_in(table.column("split"), value_set=pa.array(SPLITS)))
    yield from _first(_flags(unknown), keys, f"its split is none of {', '.join(SPLITS)}")


def _members(
    table: pa.Table, keys: pa.Array, offset_N: NDArray[np.int64], size_N: NDArray[np.int64]
) -> Iterator[Wrong]:
    """Check that members lie within their sample, hence within its shard."""
    listed = table.column("members").combine_chunks()
    flat, rows = pc.list_flatten(listed), np.asarray(pc.list_parent_indices(listed), np.int64)
    count_N = np.bincount(rows, minlength=len(keys)) if len(keys) else np.empty(0, np.int64)
    yield from _first(count_N == 0, keys, "it has no members")
    begin_M, size_M = np.asarray(flat.field("offset")), np.asarray(flat.field("size"))
    first_M, last_M = offset_N[rows], offset_N[rows] + size_N[rows]
    outside = rows[(size_M < 0) | (begin_M < first_M) | (begin_M > last_M - size_M)]
    outside_N = np.zeros(len(keys), np.bool_)
    outside_N[outside] = True
    yield from _first(outside_N, keys, "a member of it does not lie within it")


def _accounting(table: pa.Table, manifest: Manifest, last: pa.Scalar | None) -> Iterator[Wrong]:
    del manifest, last  # what concerns all rows is counted as they are added
    sources = table.column("source").combine_chunks()
    yield from _states(table, sources)
    missing_N = _flags(pc.is_null(table.column("start_s")))
    start_N, end_N = _numbers(table, "start_s"), _numbers(table, "end_s")
    wrong_N = np.where(missing_N, ~np.isnan(end_N), _no_span(start_N, end_N))
    yield from _first(wrong_N, sources, "it has an impossible span", start_N, end_N)
    for state, needed in _NEEDED:
        of_state, null = pc.equal(table.column("state"), state), pc.is_null(table.column(needed))
        yield from _first(_flags(pc.and_(of_state, null)), sources, f"it is {state} and has no {needed}")


def _scores(table: pa.Table, manifest: Manifest, last: pa.Scalar | None) -> Iterator[Wrong]:
    del manifest, last  # the manifest does not count scores
    keys = table.column("key").combine_chunks()
    yield from _states(table, keys)
    start_N, end_N = _numbers(table, "start_s"), _numbers(table, "end_s")
    yield from _first(_no_span(start_N, end_N), keys, "it has an impossible span", start_N, end_N)


def _states(table: pa.Table, names: pa.Array) -> Iterator[Wrong]:
    unknown = pc.invert(pc.is_in(table.column("state"), value_set=pa.array(STATES)))
    yield from _first(_flags(unknown), names, f"its state is none of {', '.join(STATES)}")


def _no_span(start_N: NDArray[Any], end_N: NDArray[Any]) -> NDArray[np.bool_]:
    possible_N: NDArray[np.bool_] = np.isfinite(start_N) & np.isfinite(end_N) & (start_N <= end_N)
    return ~possible_N


def _first(
    wrong_N: NDArray[np.bool_],
    names: pa.Array,
    what: str,
    *values: NDArray[Any] | Sequence[Any],
    first: int = 0,
) -> Iterator[Wrong]:
    """Yield the first wrong row by name, with the number of all; ``first`` is the number of row 0."""
    rows = np.flatnonzero(wrong_N)
    if len(rows):
        row = int(rows[0])
        shown = f" ({', '.join(str(value[row]) for value in values)})" if values else ""
        yield Wrong(first + row, names[row].as_py()[:200], what, shown, len(rows))


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column as numbers, NaN for nulls."""
    values: NDArray[Any] = table.column(name).to_numpy()
    return values


def _flags(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column, np.bool_)
