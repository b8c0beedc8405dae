"""Rows of the gallery in columns: one per row of the accounting, those with a picture first."""

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.takedown.takedown import STAGE as REMOVAL
from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.dataset import Dataset
from reelweave.pipelines.report.numbers.places import places

COLUMNS = ("source", "start_s", "end_s", "key", "state", "stage", "reason", "duplicate_of")
"""Columns of the accounting that a gallery shows."""


@dataclass(frozen=True)
class GalleryRows:
    """Columns of the gallery [N].

    Attributes:
        accounting: columns `COLUMNS` of the accounting in the gallery's order, without names of what was taken down.
        index_N: row of each kept clip in the index; -1 for others.
        scored_N: row of each clip in the scores; -1 where it has none.
        of_N: gallery row of the clip that each duplicate repeats; -1 for others.
    """

    accounting: pa.Table
    index_N: NDArray[np.int64]
    scored_N: NDArray[np.int64]
    of_N: NDArray[np.int64]

    @classmethod
    def of(
        cls, dataset: Dataset, accounting: pa.Table, first: NDArray[np.int64], scored: pa.Table
    ) -> "GalleryRows":
        """Return the rows of a dataset.

        Args:
            dataset: its tables are read, no clip is.
            accounting: columns `COLUMNS` of its accounting.
            first: rows of the accounting that come first.
            scored: key and source of the clips in the scores.
        """
        is_shown = np.ones(len(accounting), np.bool_)
        is_shown[first] = False
        table = _without_removed(accounting.take(np.concatenate([first, np.flatnonzero(is_shown)])))
        key, kept_N = table.column("key"), pc.equal(table.column("state"), "kept").to_numpy()
        index_N = np.where(kept_N, places(key, dataset.column("key")), -1)
        kept_K = np.flatnonzero(kept_N)
        of_N = places(table.column("duplicate_of"), key.take(kept_K))
        return cls(
            table,
            index_N,
            places(_row_names(table), _row_names(scored)),
            np.where(of_N >= 0, kept_K[of_N] if len(kept_K) else -1, -1),
        )

    @cached_property
    def kinds(self) -> tuple[list[tuple[str, str]], NDArray[np.uint8 | np.uint16]]:
        """Distinct pairs of state and stage, and each row's pair [N]."""
        kind = pc.binary_join_element_wise(
            self.accounting.column("state"), self.accounting.column("stage"), "\n"
        ).combine_chunks()
        encoded = kind.dictionary_encode()
        names = [name.split("\n", 1) for name in encoded.dictionary.to_pylist()]
        return [(state, stage) for state, stage in names], _narrow(encoded.indices.to_numpy())

    @cached_property
    def sources(self) -> tuple[list[str], NDArray[np.uint32]]:
        """Distinct sources in the order of their first rows, and each row's source [N]."""
        encoded = self.accounting.column("source").combine_chunks().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype("<u4")

    @cached_property
    def key_hashes(self) -> NDArray[np.uint32]:
        """CRC-32 of each row's key, by which a permalink finds its row; 0 without a key."""
        keys = self.accounting.column("key")
        return np.fromiter((zlib.crc32((key.as_py() or "").encode()) for key in keys), "<u4", len(keys))

    def buckets(
        self, dataset: Dataset, config: BucketConfig
    ) -> tuple[list[str], NDArray[np.uint8 | np.uint16]]:
        """Return the buckets in use, and each row's place [N] in them plus 1; 0 without one."""
        assignment = assign(dataset.plan_index, config)
        of_row = np.append(assignment.bucket_of, -1)[self.index_N]
        used = np.unique(of_row[of_row >= 0])
        place_N = np.where(of_row >= 0, np.searchsorted(used, of_row) + 1, 0)
        return [str(assignment.buckets[bucket]) for bucket in used], _narrow(place_N)

    def rows_of_index(self, index_M: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the gallery's rows of samples by their rows in the index; -1 for those that the accounting lacks."""
        kept_K = np.flatnonzero(self.index_N >= 0)
        size = 1 + max(self.index_N.max(initial=-1), index_M.max(initial=-1))
        row_I = np.full(int(size), -1, np.int64)
        row_I[self.index_N[kept_K]] = kept_K
        return row_I[index_M]

    def index_column(self, dataset: Dataset, name: str, missing: Any) -> pa.ChunkedArray:
        """Return a column of the index in the order of the rows, with a value for what is in no index."""
        values = dataset.column(name).take(pa.array(self.index_N, mask=self.index_N < 0))
        return pc.fill_null(values, missing)


def _without_removed(table: pa.Table) -> pa.Table:
    """Return the table with neither key, source nor span of rows that were taken down; their number stays."""
    removed = pc.equal(table.column("stage"), REMOVAL)
    if not pc.any(removed).as_py():
        return table
    for name, value in (("key", None), ("source", ""), ("start_s", None), ("end_s", None)):
        column = table.column(name)
        empty = pa.scalar(value, column.type)
        column_index = table.schema.get_field_index(name)
        table = table.set_column(column_index, name, pc.if_else(removed, empty, column))
    return table


def _row_names(table: pa.Table) -> pa.ChunkedArray:
    """Return key and source in one; a key may be of two sources of equal content."""
    return pc.binary_join_element_wise(table.column("key"), table.column("source"), "\n")


def _narrow(number_N: NDArray[Any]) -> NDArray[np.uint8 | np.uint16]:
    """Return numbers in one byte each where they fit, else in two."""
    return number_N.astype("u1" if number_N.max(initial=0) < 1 << 8 else "<u2")
