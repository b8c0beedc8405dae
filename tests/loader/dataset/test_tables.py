"""Tables of rows: equal bytes however many batches they are made of."""

import io
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.loader.dataset.schema import SCORES
from reelweave.loader.dataset.shard import npy_bytes
from reelweave.loader.dataset.tables import parquet
from reelweave.loader.dataset.tables.parquet import read_batches, to_parquet, to_rows, to_table


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


class Piece(bytearray):
    """Bytes that were read; a weak reference tells when they are let go."""


class CountedFile(io.BytesIO):
    """File that counts its bytes that someone still holds, and the most of them at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.held = self.most = 0

    def read(self, size: int | None = -1) -> Piece:  # type: ignore[override]
        piece = Piece(super().read(size))
        self.held += len(piece)
        self.most = max(self.most, self.held)
        weakref.finalize(piece, self._let_go, len(piece))
        return piece

    def _let_go(self, size: int) -> None:
        self.held -= size


def test_a_table_read_by_parts_holds_the_bytes_of_one_row_group_at_a_time() -> None:
    groups, rows = 40, 50
    schema = pa.schema([pa.field(name, pa.binary(), nullable=False) for name in "abc"])
    chance = np.random.default_rng(0)
    table = pa.table({name: [chance.bytes(500) for _ in range(groups * rows)] for name in "abc"}, schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows, write_page_checksum=True)
    file = CountedFile(buffer.getvalue())
    found = sum(len(batch) for batch in read_batches(file, len(buffer.getvalue()), "it", schema, None))
    assert found == groups * rows
    assert file.most < 3 * len(buffer.getvalue()) / groups
