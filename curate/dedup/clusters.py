"""Spherical k-means over an embedding, which limits the neighbour search to clusters."""

import numpy as np

from curate.dedup.neighbours import Floats, Places, nearest_centre
from curate.models.device import Device


def clusters(vectors: Floats, size: int, iterations: int, device: Device = "cpu") -> Places:
    """Assign each vector to a cluster; deterministic, because the first centres are spaced evenly over the vectors.

    Args:
        vectors: float32 [n, D], unit length.
        size: Mean number of vectors per cluster.
        iterations: Maximum number of iterations; they end early when nothing moves.
        device: Device of the products, as in `curate.dedup.neighbours.near_pairs`; a GPU may assign a vector
            between two centres differently.

    Returns:
        Cluster numbers, [n], from 0.
    """
    count = max(1, len(vectors) // size)
    centres = vectors[np.linspace(0, len(vectors) - 1, count).astype(np.intp)].copy()
    nearest = np.full(len(vectors), -1, np.intp)
    for _ in range(iterations):
        previous, nearest = nearest, nearest_centre(vectors, centres, device)
        if np.array_equal(previous, nearest):
            break
        order = np.argsort(nearest, kind="stable")
        used, starts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(vectors[order], starts, axis=0)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        # A centre without vectors, or whose vectors cancel out, is left unchanged.
        centres[used] = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), centres[used])
    return nearest
