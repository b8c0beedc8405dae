"""Clusters of an embedding by spherical k-means, so that near neighbours need not be sought among all."""

import numpy as np

from curate.dedup.neighbours import Floats, Places, nearest_centre
from curate.models.device import Device


def clusters(vectors: Floats, size: int, iterations: int, device: Device = "cpu") -> Places:
    """The cluster of each vector; the same on every run: the first centres are spread evenly over the vectors.

    Args:
        vectors: float32 [n, D], unit length.
        size: vectors a cluster shall hold on average.
        iterations: at most; it ends when nothing moves.
        device: as of `curate.dedup.neighbours.near_pairs`; a GPU may place a vector between two centres otherwise.

    Returns:
        [n], from 0.
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
        # A centre that nobody is near, or whose vectors cancel out, stays where it is.
        centres[used] = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), centres[used])
    return nearest
