"""Products of every picture with the ones a fixed number of frames before it, many at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Lags:
    """Inner products of the rows of a matrix that grows at its end and is kept only as far back as needed.

    Args:
        lags: Distances in rows, not negative.
    """

    def __init__(self, lags: Sequence[int]) -> None:
        self._lags = tuple(lags)
        self._kept: Floats | None = None  # the last max(lags) rows

    def push(self, rows: Floats) -> Floats:
        """Product of each of the next rows, [n, features], with the row each lag before it, [n, lags].

        Rows before the first count as nothing: their products are 0.
        """
        longest = max(self._lags)
        if self._kept is None:
            self._kept = np.zeros((longest, rows.shape[1]), np.float32)
        known = np.concatenate([self._kept, rows])
        self._kept = known[len(rows) :]
        products = [
            np.einsum("nf,nf->n", rows, known[longest - lag : longest - lag + len(rows)])
            for lag in self._lags
        ]
        return np.stack(products, axis=1)
