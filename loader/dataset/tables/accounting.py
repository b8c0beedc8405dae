"""Totals of the accounting: rows, sources and seconds by state and stage."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset.schema import STATES

TOTALLED = ("source", "start_s", "end_s", "state", "stage")
"""Columns of which totals are made."""

_Stage = tuple[str, str]


@dataclass(frozen=True)
class StageTotal:
    """Totals of one state and stage.

    Attributes:
        state: kept, filtered, duplicate or failed.
        stage: stage that decided the state.
        rows: number of spans, and of sources without spans.
        sources: number of distinct sources among the rows.
        seconds: duration of the rows' spans.
    """

    state: str
    stage: str
    rows: int
    sources: int
    seconds: float


class Numbered:
    """Numbers of different texts of a column that comes by parts.

    Attributes:
        names: the texts, each with its number, in the order in which they came.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def of(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the number of each text [n]."""
        encoded = column.combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        number_U = np.array([self.names.setdefault(name, len(self.names)) for name in names], np.int64)
        number_n: NDArray[np.int64] = number_U[encoded.indices.to_numpy()]
        return number_n


def seconds_of(accounting: pa.Table) -> NDArray[np.float64]:
    """Return the duration of each row's span [n]; 0 of sources without spans."""
    seconds = pc.subtract(accounting.column("end_s"), accounting.column("start_s"))
    seconds_N: NDArray[np.float64] = pc.fill_null(seconds, 0.0).to_numpy()
    return seconds_N


def grow_array(values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array with room for at least so many entries, zeros where it is new."""
    if size <= len(values):
        return values
    return np.concatenate([values, np.zeros(max(size, 2 * len(values)) - len(values), values.dtype)])


def stage_totals(parts: Iterable[pa.Table]) -> list[StageTotal]:
    """Return the totals of an ``accounting.parquet`` that comes by parts, of which it takes the columns `TOTALLED`.

    Those of kept spans come first, then by stage.
    """
    sources, rows, seconds = Numbered(), Counter[_Stage](), dict[_Stage, NDArray[np.float64]]()
    source_masks: dict[_Stage, NDArray[np.bool_]] = {}
    for table in parts:
        number_n, seconds_n = sources.of(table.column("source")), seconds_of(table)
        state_n, stage_n = (table.column(name).combine_chunks() for name in ("state", "stage"))
        pairs = table.group_by(["state", "stage"], use_threads=False).aggregate([])
        for state, stage in zip(*(column.to_pylist() for column in pairs.columns), strict=True):
            group_rows = np.flatnonzero(pc.and_(pc.equal(state_n, state), pc.equal(stage_n, stage)))
            group = (state, stage)
            rows[group] += len(group_rows)
            # One after the other, as in one part: sums of parts would differ in their last digits.
            np.add.at(
                seconds.setdefault(group, np.zeros(1)),
                np.zeros(len(group_rows), np.int64),
                seconds_n[group_rows],
            )
            source_masks[group] = grow_array(
                source_masks.get(group, np.zeros(0, np.bool_)), len(sources.names)
            )
            source_masks[group][number_n[group_rows]] = True
    totals = [
        StageTotal(state, stage, count, int(source_masks[state, stage].sum()), seconds[state, stage].item())
        for (state, stage), count in rows.items()
    ]
    return sorted(totals, key=lambda total: (STATES.index(total.state), total.stage))
