"""The arrays that plans are made of."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
"""Numbers of things: rows, ranks, slots, buckets."""
Flags = NDArray[np.bool_]
