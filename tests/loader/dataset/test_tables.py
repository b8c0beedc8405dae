"""Tables of rows: equal bytes however many batches they are made of."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader.dataset.schema import SCORES
from loader.dataset.shard import npy_bytes
from loader.dataset.tables import parquet
from loader.dataset.tables.parquet import to_parquet, to_rows, to_table


@pytest.mark.parametrize("rows", [0, 1, 7, 8])
def test_batches_do_not_show(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        {
            "key": f"k{number}",
            "source": "a.mp4",
            "start_s": number / 3,
            "end_s": number + 0.5,
            "state": "kept",
        }
        | {"scores": {"sharp": 0.1 * number, "motion": float("nan")} if number % 3 else {}}
        for number in range(rows)
    ]
    whole = to_table(given, SCORES)
    monkeypatch.setattr(parquet, "_ROWS_AT_ONCE", 2)
    assert to_parquet(to_table(iter(given), SCORES)) == to_parquet(whole)
    assert [row["key"] for row in to_rows(whole)] == [row["key"] for row in given]


@pytest.mark.parametrize("rows", [0, 4, 5, 13])
def test_a_table_that_comes_by_parts_has_the_same_bytes(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pa.table({"key": [f"k{number}" for number in range(rows)]}, pa.schema([("key", pa.string())]))
    pq.write_table(whole, expected := io.BytesIO(), row_group_size=5, **parquet._OPTIONS)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 5)
    with parquet.ParquetWriter(tmp_path / "table", whole.schema) as writer:
        for first in range(0, rows, 3):
            writer.add(whole.slice(first, 3))
    assert (tmp_path / "table").read_bytes() == expected.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float16),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.arange(24, dtype=">f4").reshape(4, 6)[::2, ::3],
        np.array(1.5),
    ],
)
def test_an_array_has_the_bytes_that_numpy_saves(array: np.ndarray) -> None:
    np.save(buffer := io.BytesIO(), array)
    assert npy_bytes(array) == buffer.getvalue()
