"""Rows of the index that a batch was made of: a sample's source, shape, scores and attributes."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.buckets.crops import cover_size
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import UsageError

_OPEN: WeakValueDictionary[str, SampleSource] = WeakValueDictionary()
"""Sources of this process's streams by fingerprint, from which rows are read that worker processes send."""


class BatchRows:
    """Rows of a batch's B samples, columnar. Nothing is read before it is asked for.

    Numbers of shapes come from the plan index. For the other columns the first call on a machine reads the index once;
    all of its processes then map one file. Worker processes send row numbers alone.

    Args:
        source: dataset or blend of the samples.
        row_B: int64 [B], index rows; of a blend through all of its datasets.
        buckets: shape of each sample.

    Attributes:
        row_B: see above.
        buckets: see above.
    """

    def __init__(self, source: SampleSource, row_B: IndexArray, buckets: Sequence[Bucket]) -> None:
        self._source: SampleSource | None = source
        self._name = source.fingerprint
        self.row_B, self.buckets = row_B, tuple(buckets)

    def __getstate__(self) -> tuple[str, IndexArray, tuple[Bucket, ...]]:
        return self._name, self.row_B, self.buckets

    def __setstate__(self, state: tuple[str, IndexArray, tuple[Bucket, ...]]) -> None:
        self._name, self.row_B, self.buckets = state
        self._source = None

    def __len__(self) -> int:
        return len(self.row_B)

    def __repr__(self) -> str:
        return f"BatchRows({self.row_B.tolist()})"

    @property
    def frames(self) -> NDArray[np.int32]:
        """Frames of each clip, int32 [B]."""
        return self._planned("frames")

    @property
    def fps(self) -> NDArray[np.float32]:
        """Frames per second of each clip, float32 [B]."""
        return self._planned("fps")

    @property
    def height(self) -> NDArray[np.uint16]:
        """Height of each clip before it was resized and cropped, pixels, uint16 [B]."""
        return self._planned("height")

    @property
    def width(self) -> NDArray[np.uint16]:
        """Width of each clip before it was resized and cropped, pixels, uint16 [B]."""
        return self._planned("width")

    @property
    def crop(self) -> Floats:
        """Part of each clip that trains, in pixels of its own size: top, left, height and width, float64 [B, 4]."""
        shapes = zip(self.height.tolist(), self.width.tolist(), self.buckets, strict=True)
        return np.array([_crop(height, width, bucket) for height, width, bucket in shapes]).reshape(-1, 4)

    @property
    def dataset(self) -> IndexArray:
        """Number of each sample's dataset in a blend, int64 [B]; 0 without one."""
        return np.array([self._opened.dataset_of(row) for row in self.row_B.tolist()], np.int64)

    @property
    def key(self) -> list[str]:
        """Keys of the samples, as in the index."""
        return list(self.table["key"].to_pylist())

    @property
    def duration_s(self) -> Floats:
        """Seconds of each clip, float64 [B]."""
        return np.asarray(self.table["duration_s"], np.float64)

    @property
    def source(self) -> list[str]:
        """Raw video of each sample; of tars of others TAR/KEY, unless indexing took it from their JSON."""
        return list(self.table["source"].to_pylist())

    @property
    def split(self) -> list[str]:
        """Split of each sample, train or val."""
        return list(self.table["split"].to_pylist())

    @property
    def scores(self) -> list[dict[str, float]]:
        """Scores of each sample by name."""
        return [row["scores"] for row in to_rows(self.table.select(["scores"]))]

    @property
    def attributes(self) -> list[dict[str, str]]:
        """Attributes of each sample by name."""
        return [row["attributes"] for row in to_rows(self.table.select(["attributes"]))]

    def score(self, name: str) -> Floats:
        """Return a score of each sample, float64 [B]; NaN where a sample lacks it."""
        values = pc.map_lookup(self.table["scores"], name, "first").to_pylist()
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def attribute(self, name: str) -> list[str | None]:
        """Return an attribute of each sample; None where a sample lacks it."""
        return list(pc.map_lookup(self.table["attributes"], name, "first").to_pylist())

    @cached_property
    def table(self) -> pa.Table:
        """Columns `reelweave.loader.dataset.tables.row_columns.ROW_COLUMNS` of the rows."""
        return self._opened.describe(self.row_B)

    @property
    def _opened(self) -> SampleSource:
        """Opened source from which the rows are read.

        Raises:
            UsageError: the batch was sent to a process that has no stream of this source.
        """
        if self._source is None:
            self._source = _OPEN.get(self._name)
        if self._source is None:
            raise UsageError(
                "batch.rows is read where the stream of the batch is: in the process that made it and in its workers."
                " Read the rows there, and send their values"
            )
        return self._source

    def _planned(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = getattr(self._opened.plan_index, name)
        return np.asarray(column[self.row_B])


def keep_open(source: SampleSource) -> None:
    """Let batches that worker processes send find a source, as long as something else holds it."""
    _OPEN[source.fingerprint] = source


def _crop(height: int, width: int, bucket: Bucket) -> tuple[float, float, float, float]:
    covering_height, covering_width = cover_size(height, width, bucket.height, bucket.width)
    y, x = height / covering_height, width / covering_width
    top, from_left = (covering_height - bucket.height) // 2, (covering_width - bucket.width) // 2
    return top * y, from_left * x, bucket.height * y, bucket.width * x
