"""Work on long columns in bounded memory: a part at a time, each different value once."""

from collections.abc import Iterator
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
