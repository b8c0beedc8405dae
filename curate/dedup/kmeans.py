"""Spherical k-means that gives the same centres on every processor and GPU.

Coordinates are rounded to multiples of 1/2048. Products are then multiples of 2^-22, and their sums at most
1, as for unit vectors. So float32 adds them without rounding, in whatever order.
"""

import numpy as np

from reelweave.curate.dedup.products import Floats, IndexArray, nearest_centre, slices
from reelweave.curate.dedup.vector_file import Matrix
from reelweave.curate.models.device import Device

GRID = 2048

_ROWS = 32_768


def on_grid(vectors: Floats) -> Floats:
    """Round the coordinates of unit vectors to multiples of 1 / GRID."""
    return np.asarray(np.round(vectors * np.float32(GRID)) / np.float32(GRID), np.float32)


class OnGrid:
    """Unit vectors with their coordinates rounded, whenever they are read.

    Args:
        vectors: The vectors.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, vectors: Matrix) -> None:
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, rows: slice | IndexArray, /) -> Floats:
        return on_grid(self._vectors[rows])


def kmeans(vectors: Matrix, count: int, iterations: int, device: Device = "cpu") -> tuple[Floats, IndexArray]:
    """Divide vectors among centres; the first centres are spaced evenly over the vectors.

    Args:
        vectors: Unit vectors [n, D], on the grid.
        count: Number of centres, from 1 to n.
        iterations: Maximum number of iterations; they end early when nothing moves.
        device: Device of the products, as in `reelweave.curate.dedup.neighbours.near_pairs`.

    Returns:
        Centres, float32 [count, D], and the nearest of them to each vector, [n].
    """
    centres = vectors[np.linspace(0, len(vectors) - 1, count).astype(np.intp)].copy()
    nearest = np.full(len(vectors), -1, np.intp)
    for _ in range(iterations):
        previous, nearest = nearest, np.empty_like(nearest)
        sums = np.zeros(centres.shape)  # of multiples of 1 / GRID: exact, whatever their order
        for rows in slices(0, len(vectors), _ROWS):
            some = vectors[rows]
            nearest[rows] = nearest_centre(some, centres, device)
            order = np.argsort(nearest[rows], kind="stable")
            used, starts = np.unique(nearest[rows][order], return_index=True)
            sums[used] += np.add.reduceat(some[order].astype(np.float64), starts, axis=0)
        if np.array_equal(previous, nearest):
            break
        lengths = np.sqrt(np.square(sums).sum(axis=1))
        moved = lengths > 1e-6  # a centre without vectors, or whose vectors cancel out, is left unchanged
        centres[moved] = on_grid((sums[moved] / lengths[moved, None]).astype(np.float32))
    return centres, nearest
