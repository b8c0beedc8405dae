"""The arrays that plans are made of."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
"""Numbers of things: rows, ranks, slots, buckets."""
Numbers = NDArray[np.integer[Any]]
"""The same where there may be very many: uint32 while all are below 2^32, else int64."""
Flags = NDArray[np.bool_]


def number_type(count: int) -> np.dtype[Any]:
    """Of `Numbers` below ``count``."""
    return np.dtype(np.uint32 if count <= 2**32 else np.int64)


def numbers(count: int) -> Numbers:
    """0 to ``count`` - 1."""
    return np.arange(count, dtype=number_type(count))
