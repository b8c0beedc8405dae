"""Explicit cost table: seconds by module, shape and degree, measured or published."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.base.csv_rows import csv_rows, positive
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.simulation.trace import TraceBatch

SHAPE = ("batch", "frames", "height", "width", "length")
"""Columns that may identify a shape; ``length`` is S, a sample's ``tokens``."""

_MODULES = {module.name.lower(): module for module in Module}
_MOST_ROWS = 1_000_000
_NEAREST = 3  # shapes named in an error

Key = tuple[int, ...]


class Cell(NamedTuple):
    """Cost of one cascade with one degree.

    Attributes:
        seconds: duration.
        memory_gib: peak on each of its GPUs, including resident state; 0 if the table lacks it.
    """

    seconds: float
    memory_gib: float


Costs = dict[Module, dict[Key, dict[int, Cell]]]
"""Cells by module, shape and degree."""


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs by module, shape and degree.

    Attributes:
        name: file name, for messages.
        columns: shape columns by which samples with frames are looked up, in the order of `SHAPE`.
        by_shape: costs by the values of ``columns``.
        by_tokens: costs by batch and tokens, for samples that have tokens alone; empty where the table has no lengths.
    """

    name: str
    columns: tuple[str, ...]
    by_shape: Costs
    by_tokens: Costs

    @property
    def degrees(self) -> tuple[int, ...]:
        """All degrees in the table, rising."""
        return tuple(sorted({k for rows in self.by_shape.values() for row in rows.values() for k in row}))

    def problem(
        self,
        step: Sequence[TraceBatch],
        gpus: int,
        degrees: Iterable[int] | None = None,
        memory_gib: float = np.inf,
    ) -> Problem:
        """Return the planning problem of one iteration.

        A module without any row is taken as cached, and so is the VAE of a sample that has tokens alone.

        Args:
            step: microbatches of the iteration.
            gpus: number of GPUs.
            degrees: degrees to choose from; None: all of the table.
            memory_gib: memory of a GPU.

        Raises:
            UsageError: the table has no row for a sample, or no degree of it fits; names both.
        """
        table_degrees = [k for k in self.degrees if degrees is None or k in set(degrees)]
        shape = (len(step), len(Module), len(table_degrees))
        seconds_SMK: Floats = np.full(shape, np.inf)
        memory_SMK: Floats = np.zeros(shape)
        for sample_index, sample in enumerate(step):
            for module in self.by_shape:
                if module is Module.VAE and not sample.frames:
                    continue
                row = self._row(module, sample, sample_index)
                if not set(table_degrees).intersection(row):
                    raise UsageError(
                        f"sample {sample_index}: {self.name} has the {module.name} of {self._describe(sample)}"
                        f" with degree {_list_degrees(row)} alone, and asked for is"
                        f" {_list_degrees(degrees or table_degrees)}"
                    )
                for degree_index, degree in enumerate(table_degrees):
                    if degree in row:
                        seconds_SMK[sample_index, module, degree_index] = row[degree].seconds
                        memory_SMK[sample_index, module, degree_index] = row[degree].memory_gib * 2**30
        return Problem(gpus, np.array(table_degrees, np.int64), seconds_SMK, memory_SMK, memory_gib * 2**30)

    def _row(self, module: Module, sample: TraceBatch, sample_index: int) -> dict[int, Cell]:
        """Return the costs of a sample's module by degree."""
        rows, columns, key = self.by_shape[module], self.columns, self._key(sample)
        if not sample.frames and "frames" in columns:
            if not self.by_tokens:
                raise UsageError(f"sample {sample_index} has tokens alone, and {self.name} no column length")
            rows, columns, key = self.by_tokens[module], ("batch", "length"), (sample.batch, sample.tokens)
        if key in rows:
            return rows[key]
        target = np.array(key) + 1.0
        near = sorted(rows, key=lambda other: float(np.abs(np.log((np.array(other) + 1) / target)).sum()))
        nearest = "; ".join(_shape(columns, other) for other in near[:_NEAREST])
        raise UsageError(
            f"sample {sample_index}: {self.name} has no row of the {module.name} of {_shape(columns, key)};"
            f" the nearest are {nearest}"
        )

    def _key(self, sample: TraceBatch) -> Key:
        values = {**dict(sample), "length": sample.tokens}
        return tuple(values[column] for column in self.columns)

    def _describe(self, sample: TraceBatch) -> str:
        return _shape(self.columns, self._key(sample))


def read_cost_table(text: str, name: str) -> CostTable:
    """Read a table from CSV, or from JSON ``{"columns": [...], "rows": [[...], ...]}``.

    Columns are ``module`` (text, vae, dit), those of `SHAPE` that identify shapes (``batch`` defaults to 1),
    ``degree``, ``seconds`` and optionally ``memory_gib``. Others are ignored, so that a profile of `reelweave
    bench cascades` is a table.

    Args:
        text: content of the file.
        name: file name, for messages.

    Raises:
        UsageError: a column is missing, a value is wrong or a row is duplicated; names row and column.
    """
    named = f"{name} is no cost table"
    columns, lines = _json(text, named) if text.lstrip()[:1] in ("{", "[") else _csv(text, name)
    for column in ("module", "degree", "seconds"):
        if column not in columns:
            raise UsageError(f"{named}: it has no column {column}")
    if not {"frames", "length"} & set(columns):
        raise UsageError(f"{named}: it has neither a column frames nor a column length, so no shapes")
    derived = "length" if "frames" in columns else "frames"  # tokens follow from frames, height and width
    shape = tuple(
        column for column in SHAPE if column == "batch" or (column in columns and column != derived)
    )
    by_shape: Costs = {}
    by_tokens: Costs = {}
    for count, (where, row) in enumerate(lines):
        if count == _MOST_ROWS:
            raise UsageError(f"{name} has more than {_MOST_ROWS} rows; give fewer")
        at = f"{name}, {where}"
        if not isinstance(row["module"], str) or row["module"] not in _MODULES:
            raise UsageError(f"{at}: module is {row['module']!r}; it is one of {', '.join(_MODULES)}")
        values = {
            column: int(positive(row[column], column, at, is_whole=True))
            for column in SHAPE
            if column in columns
        }
        key = tuple(values.get(column, 1) for column in shape)
        degree = int(positive(row["degree"], "degree", at, is_whole=True))
        cell = Cell(
            positive(row["seconds"], "seconds", at),
            positive(row["memory_gib"], "memory_gib", at) if row.get("memory_gib") not in (None, "") else 0.0,
        )
        module = _MODULES[row["module"]]
        costs = by_shape.setdefault(module, {}).setdefault(key, {})
        if degree in costs:
            of = f"the {row['module']} of {_shape(shape, key)} with degree {degree}"
            raise UsageError(f"{at}: {of} is there twice; give one row of it")
        costs[degree] = cell
        if "length" in values:
            # Several shapes may have equal numbers of tokens; the slowest one is safe to plan with.
            tokens = values.get("batch", 1), values["length"]
            alike = by_tokens.setdefault(module, {}).setdefault(tokens, {})
            alike[degree] = max(alike.get(degree, cell), cell)
    if Module.DIT not in by_shape:
        raise UsageError(f"{named}: it has no rows of the module dit")
    return CostTable(name, shape, by_shape, by_tokens)


def _csv(text: str, name: str) -> tuple[Sequence[str], Iterator[tuple[str, dict[str, Any]]]]:
    columns, lines = csv_rows(text, name)
    return columns, ((f"line {line}", row) for line, row in lines)


def _json(text: str, named: str) -> tuple[Sequence[str], Iterator[tuple[str, dict[str, Any]]]]:
    try:
        held = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{named}: it is neither CSV nor JSON: {error}") from error
    columns, rows = (held.get("columns"), held.get("rows")) if isinstance(held, dict) else (None, None)
    if not (
        isinstance(columns, list)
        and all(isinstance(column, str) for column in columns)
        and isinstance(rows, list)
    ):
        raise UsageError(f'{named}: JSON must be {{"columns": [...], "rows": [[...], ...]}}')
    for row_index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise UsageError(
                f"{named}: row {row_index} is no list of {len(columns)} values, one for each column"
            )
    return columns, (
        (f"row {row_index}", dict(zip(columns, row, strict=True))) for row_index, row in enumerate(rows)
    )


def _shape(columns: Sequence[str], key: Sequence[int]) -> str:
    return ", ".join(f"{column} {value}" for column, value in zip(columns, key, strict=True))


def _list_degrees(degrees: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(degrees)))
