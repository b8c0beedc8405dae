"""Vectors on local disk: written once, and read by runs of neighbouring rows."""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.dedup.products import Floats, IndexArray, slices
from reelweave.loader.errors import RunError

_GAP = 32
"""Most rows between two others that are read together: a request takes as long as reading these."""
_RUN = 1024
"""Most rows that are read together."""


class Matrix(Protocol):
    """Vectors [n, D] that are read when they are asked for, or an array of float32."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type in which they are stored."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | IndexArray, /) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some rows of a table of vectors.

    Attributes:
        read: Function from rows of the table to their vectors.
        rows: These rows.
        dtype: Type in which they are stored.
        places: Where each lies in a file; None: in several.
    """

    read: Callable[[IndexArray], Floats]
    rows: IndexArray
    dtype: np.dtype[Any]
    places: IndexArray | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | IndexArray, /) -> Floats:
        return self.read(self.rows[rows])


def as_they_lie(vectors: Matrix, step: int) -> Iterator[slice | IndexArray]:
    """Yield all rows, so many at a time, in an order in which they are read fast."""
    vector_rows = vectors.places if isinstance(vectors, Chosen) else None
    order = None if vector_rows is None else np.argsort(vector_rows)
    for rows in slices(0, len(vectors), step):
        yield rows if order is None else order[rows]


class VectorFile:
    """Vectors in a file without a name in the temporary folder: it is gone with this object, and with the process.

    They are read as float32. The file's own pages are the kernel's, and no memory of this process.

    Attributes:
        width: D; 0 while there is no vector.
        dtype: Type in which they are stored, the narrowest that holds all.
    """

    def __init__(self) -> None:
        # Closed by the finalizer.
        file = tempfile.TemporaryFile(prefix="reelweave-vectors-", buffering=0)  # noqa: SIM115
        self._handle = file.fileno()
        weakref.finalize(self, file.close)
        self.width, self.dtype, self._count = 0, np.dtype(np.float16), 0

    def __len__(self) -> int:
        return self._count

    def append(self, vectors: NDArray[Any]) -> None:
        """Write vectors [n, D] behind those that are there.

        Raises:
            RunError: they have another width than those before.
        """
        self.put(np.arange(self._count, self._count + len(vectors)), vectors)

    def put(self, rows: IndexArray, vectors: NDArray[Any]) -> None:
        """Write vectors into rising rows; rows between them that nobody writes are zero.

        Raises:
            RunError: they have another width than those before.
        """
        if not len(vectors):
            return
        self._fit(vectors)
        data = np.ascontiguousarray(vectors, self.dtype)
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
            self._write(int(rows[start]), data[start:end])
        self._count = max(self._count, int(rows[-1]) + 1)

    def __getitem__(self, rows: slice | IndexArray, /) -> Floats:
        if isinstance(rows, slice):
            start, end, _ = rows.indices(self._count)
            matrix = np.empty((end - start, self.width), np.float32)
            for first in range(start, end, _RUN):
                last = min(first + _RUN, end)
                matrix[first - start : last - start] = as_float32(self._read(first, last))
            return matrix
        several, where = _distinct(rows)
        return as_float32(self._at(several))[where]

    def read_stored(self, rows: IndexArray) -> NDArray[Any]:
        """Return vectors by their rows in the type in which they are stored."""
        several, where = _distinct(rows)
        return self._at(several)[where]

    def _at(self, rows: IndexArray) -> NDArray[Any]:
        """Return vectors by rising rows; runs of neighbours are read together."""
        matrix = np.empty((len(rows), self.width), self.dtype)
        run = np.empty((min(_RUN, self._count), self.width), self.dtype)
        starts_run = (np.diff(rows, prepend=-_RUN) > _GAP) | (np.diff(rows // _RUN, prepend=-1) > 0)
        starts = np.flatnonzero(starts_run)
        ends = np.append(starts, len(rows))[1:]
        bounds = (starts, ends, rows[starts], rows[ends - 1] + 1)
        for start, end, first, last in zip(*(bound.tolist() for bound in bounds), strict=True):
            if end - start == last - first:
                self._fill(matrix[start:end], first)
            else:
                self._fill(run[: last - first], first)
                matrix[start:end] = run[rows[start:end] - first]
        return matrix

    def _fit(self, vectors: NDArray[Any]) -> None:
        """Take up width and type of vectors that come."""
        if not self._count:
            self.width, self.dtype = vectors.shape[1], vectors.dtype
        elif vectors.shape[1] != self.width:
            raise RunError(
                f"the vectors of clips have different sizes: {self.width} and {vectors.shape[1]} numbers"
            )
        narrow, self.dtype = self.dtype, np.result_type(self.dtype, vectors.dtype)
        if narrow != self.dtype:
            # From the end: nothing is overwritten before it is read.
            for start in reversed(range(0, self._count, _RUN)):
                part = self._read(start, min(start + _RUN, self._count), narrow)
                self._write(start, part.astype(self.dtype))

    def _read(self, start: int, end: int, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
        matrix = np.empty((end - start, self.width), dtype or self.dtype)
        self._fill(matrix, start)
        return matrix

    def _fill(self, matrix: NDArray[Any], row: int) -> None:
        remaining, at = matrix, row * self.width * matrix.itemsize
        while remaining.nbytes:
            size = os.preadv(self._handle, [remaining.data], at)
            assert size, "rows end before their number does"
            remaining, at = remaining.reshape(-1).view(np.uint8)[size:], at + size

    def _write(self, row: int, data: NDArray[Any]) -> None:
        remaining, at = data.reshape(-1).view(np.uint8).data, row * self.width * data.itemsize
        while remaining:
            size = os.pwrite(self._handle, remaining, at)
            remaining, at = remaining[size:], at + size


def _distinct(rows: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the different rows, rising, and the place among them of each."""
    several, where = np.unique(rows, return_inverse=True)
    return several.astype(np.intp), where


def as_float32(vectors: NDArray[Any]) -> Floats:
    """Return vectors as float32; numpy takes four times as long for those of 16 bits."""
    if vectors.dtype != np.float16 or not vectors.flags.c_contiguous:
        return vectors.astype(np.float32)
    bits = vectors.view(np.int16)
    if (bits & 0x7FFF).max(initial=0) >= 0x7C00:  # infinite, or no number
        return vectors.astype(np.float32)
    wide = bits.astype(np.int32)
    wide <<= 13
    wide &= ~0x70000000  # copies of the sign
    floats = wide.view(np.float32)
    floats *= np.float32(2.0**112)  # the exponent's other offset
    return floats
