"""Array types of plans and indices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
IndexArray = NDArray[np.int64]
"""int64 numbers of rows, ranks, slots or buckets."""
IntegerArray = NDArray[np.integer[Any]]
"""Integers of long columns: uint32 while all values are below 2^32, else int64."""
Flags = NDArray[np.bool_]


def number_type(count: int) -> np.dtype[Any]:
    """Return the dtype of `IntegerArray` below ``count``."""
    return np.dtype(np.uint32 if count <= 2**32 else np.int64)


def numbers(count: int) -> IntegerArray:
    """Return the numbers 0 to ``count`` - 1."""
    return np.arange(count, dtype=number_type(count))
