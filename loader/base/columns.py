"""Work on long columns in bounded memory: a part at a time, each different value once."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_PART = 1 << 20


def parts(count: int, length: int = _PART) -> Iterator[slice]:
    """Slices of a length that cover ``count`` entries in order; the last may reach beyond them."""
    return (slice(start, start + length) for start in range(0, count, length))


def distinct(values_N: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Different values [U] in the order they first occur, and int32 [N], the place of each entry among them.

    By hashing: `numpy.unique` sorts, which takes three to four times as long where few values are different.
    """
    found = pa.array(values_N).dictionary_encode()
    return found.dictionary.to_numpy(), found.indices.to_numpy()


class Joined:
    """Columns one behind the other, left where they lie; read as the array they would make together.

    Args:
        columns: arrays [n] of one type.
        added: to the values of each; None is nothing.
    """

    def __init__(self, columns: Sequence[NDArray[Any]], added: Sequence[int] | None = None) -> None:
        self._columns = tuple(columns)
        self._added = tuple(added or [0] * len(columns))
        self._starts = np.cumsum([0, *map(len, columns)])
        self.dtype = self._columns[0].dtype

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def shape(self) -> tuple[int]:
        """Of the array."""
        return (len(self),)

    def item(self, place: int) -> Any:
        """One value as a Python number."""
        if not 0 <= place < len(self):
            raise IndexError(f"place {place} of a column of {len(self)}")
        part = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self._columns[part].item(place - int(self._starts[part])) + self._added[part]

    def __getitem__(self, places: slice | NDArray[Any]) -> NDArray[Any]:
        """Values of a slice without a step, or at places [n] from 0."""
        if isinstance(places, slice):
            start, stop, _ = places.indices(len(self))
            lengths = zip(self._columns, self._starts.tolist(), self._added, strict=False)
            pieces = [
                column[max(start - begin, 0) : max(stop - begin, 0)] + self.dtype.type(added)
                for column, begin, added in lengths
                if begin < stop and begin + len(column) > start
            ]
            return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)
        found = np.empty(len(places), self.dtype)
        part_n = np.searchsorted(self._starts, places, side="right") - 1
        for part in np.unique(part_n):
            own = part_n == part
            found[own] = self._columns[part][places[own] - self._starts[part]] + self.dtype.type(
                self._added[part]
            )
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole array, in memory."""
        del copy  # it always is one
        return self[:].astype(dtype or self.dtype, copy=False)
