"""Spherical k-means that gives the same centres on every processor and GPU.

Coordinates are rounded to multiples of 1/2048. Products are then multiples of 2^-22, and their sums at most
1, as for unit vectors. So float32 adds them without rounding, in whatever order.
"""

import numpy as np

from curate.dedup.products import Floats, Places, nearest_centre
from curate.models.device import Device

GRID = 2048


def on_grid(vectors: Floats) -> Floats:
    """Round the coordinates of unit vectors to multiples of 1 / GRID."""
    return np.asarray(np.round(vectors * np.float32(GRID)) / np.float32(GRID), np.float32)


def kmeans(vectors: Floats, count: int, iterations: int, device: Device = "cpu") -> tuple[Floats, Places]:
    """Divide vectors among centres; the first centres are spaced evenly over the vectors.

    Args:
        vectors: float32 [n, D], unit length, on the grid.
        count: Number of centres, from 1 to n.
        iterations: Maximum number of iterations; they end early when nothing moves.
        device: Device of the products, as in `curate.dedup.neighbours.near_pairs`.

    Returns:
        Centres, float32 [count, D], and the nearest of them to each vector, [n].
    """
    centres = vectors[np.linspace(0, len(vectors) - 1, count).astype(np.intp)].copy()
    nearest = np.full(len(vectors), -1, np.intp)
    for _ in range(iterations):
        previous, nearest = nearest, nearest_centre(vectors, centres, device)
        if np.array_equal(previous, nearest):
            break
        order = np.argsort(nearest, kind="stable")
        used, starts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(vectors[order].astype(np.float64), starts, axis=0)
        lengths = np.sqrt(np.square(sums).sum(axis=1))
        moved = lengths > 1e-6  # a centre without vectors, or whose vectors cancel out, is left unchanged
        centres[used[moved]] = on_grid((sums[moved] / lengths[moved, None]).astype(np.float32))
    return centres, nearest
