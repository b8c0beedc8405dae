"""Places in columns and sequences: of known values, and evenly spread."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def places(values: pa.ChunkedArray, vocabulary: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the place of each value among the known ones; -1 for others and for nulls."""
    indices = pc.index_in(values, vocabulary.combine_chunks(), skip_nulls=True)
    return np.asarray(pc.fill_null(indices, -1), np.int64)


def spread(total: int, max_count: int) -> list[int]:
    """Return at most so many places below ``total``, evenly spread and rising.

    Sums are of Python's integers: durations in damaged headers exceed 64 bits when multiplied.
    """
    count = min(total, max_count)
    return [(2 * index + 1) * total // (2 * count) for index in range(count)]
