"""Scores as columns: the same whatever the table's chunks, read some rows at a time."""

import numpy as np
import pyarrow as pa
import pytest

from reelweave.loader.errors import RunError
from reelweave.pipelines.report.numbers.scores import score_columns

MAPS = pa.map_(pa.string(), pa.float64())


def chunk(rows: list[dict[str, float]]) -> pa.Array:
    return pa.array([list(row.items()) for row in rows], MAPS)


def test_columns_are_those_of_the_rows_whatever_the_chunks() -> None:
    drawn = np.random.default_rng(0)
    rows = [
        {name: value for name, value in zip("abc", drawn.random(3).tolist(), strict=True) if value > 0.4}
        for _ in range(20_000)
    ]
    rows[15_000]["late"] = 7.0
    table = pa.chunked_array([chunk(rows[:9_000]), chunk([]), chunk(rows[9_000:])], MAPS)
    for column, expected in ((table, rows), (table.slice(100, 15_500), rows[100:15_600])):
        found = score_columns(column)
        assert set(found) == {"a", "b", "c", "late"}
        for name, values in found.items():
            assert np.array_equal(values, [row.get(name, np.nan) for row in expected], equal_nan=True)
    assert score_columns(pa.chunked_array([], MAPS)) == {}


def test_a_score_that_a_row_has_twice_is_refused() -> None:
    twice = pa.array([*([[("a", 1.0)]] * 9_000), [("a", 1.0), ("b", 2.0), ("a", 3.0)]], MAPS)
    with pytest.raises(RunError, match="says one thing twice: score 'a'"):
        score_columns(pa.chunked_array([twice]))
