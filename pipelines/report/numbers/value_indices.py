"""Places of values in a column."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def places(values: pa.ChunkedArray, vocabulary: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the place of each value among the known ones; -1 for others and for nulls."""
    indices = pc.index_in(values, vocabulary.combine_chunks(), skip_nulls=True)
    return np.asarray(pc.fill_null(indices, -1), np.int64)
