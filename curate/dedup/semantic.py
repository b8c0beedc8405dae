"""Near neighbours in an embedding: clusters by spherical k-means, then pairs inside each cluster.

Everything runs in numpy, in chunks, and gives the same result on every run: the first centres are spread evenly over
the items in the order of their keys.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_CHUNK = 4096


def clusters(vectors: Floats, size: int, iterations: int) -> NDArray[np.intp]:
    """The cluster of each vector.

    Args:
        vectors: float32 [n, D], unit length.
        size: vectors a cluster shall hold on average.
        iterations: at most; it ends when nothing moves.

    Returns:
        [n], from 0.
    """
    count = max(1, len(vectors) // size)
    centres = vectors[np.linspace(0, len(vectors) - 1, count).astype(np.intp)].copy()
    nearest = np.full(len(vectors), -1, np.intp)
    for _ in range(iterations):
        previous, nearest = nearest, _nearest(vectors, centres)
        if np.array_equal(previous, nearest):
            break
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, vectors)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        # A centre that nobody is near stays where it is.
        centres = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), centres).astype(np.float32)
    return nearest


def near_pairs(vectors: Floats, least: float, most: int) -> Iterator[tuple[int, int, float]]:
    """(earlier, later, cosine) of pairs at least so near, at most so many earlier ones for each later one.

    Memory is bounded by a chunk of rows.
    """
    for start in range(0, len(vectors), _CHUNK):
        rows = vectors[start : start + _CHUNK]
        near = rows @ vectors[: start + len(rows)].T
        for place, values in enumerate(near):
            later = start + place
            found = np.flatnonzero(values[:later] >= least)
            for earlier in found[np.argsort(-values[found], kind="stable")[:most]]:
                yield int(earlier), later, float(values[earlier])


def _nearest(vectors: Floats, centres: Floats) -> NDArray[np.intp]:
    parts = [
        np.argmax(vectors[start : start + _CHUNK] @ centres.T, axis=1)
        for start in range(0, len(vectors), _CHUNK)
    ]
    return np.concatenate(parts)
