"""Which samples of a leaf are drawn: one pass over it after the other, each in an order of its own."""

import numpy as np
from numpy.typing import NDArray

from loader.draws import words

_PURPOSE = 1 << 32  # of the random words; smaller ones belong to the plan

Rows = NDArray[np.int64]


def drawn(rows_n: Rows, drawable_n: NDArray[np.bool_], seed: int, leaf: int, start: int, stop: int) -> Rows:
    """Draws ``start`` to ``stop`` of a leaf's endless sequence of passes.

    Every pass holds every sample that can be drawn once, so at any time no sample was drawn more than once oftener
    than another. The order of a pass comes from all samples: those that cannot be drawn are left out of it.

    Args:
        rows_n: int64 [n], of the leaf.
        drawable_n: bool [n], which of them can be drawn.
        seed: of the whole run.
        leaf: its place in the blend.
        start: first draw.
        stop: end, not included.

    Returns:
        int64 [stop - start], rows.
    """
    held = int(drawable_n.sum())
    if start == stop or not held:
        return np.zeros(0, np.int64)
    first, last = start // held, (stop - 1) // held
    passes = [_order(rows_n, drawable_n, seed, leaf, number) for number in range(first, last + 1)]
    return np.concatenate(passes)[start - first * held : stop - first * held]


def _order(rows_n: Rows, drawable_n: NDArray[np.bool_], seed: int, leaf: int, number: int) -> Rows:
    order_n = np.argsort(words(seed, number, _PURPOSE + leaf, len(rows_n)), kind="stable")
    return rows_n[order_n[drawable_n[order_n]]]


def occurrence(rows_D: Rows) -> Rows:
    """For each draw, how often its row stands before it, int64 [D]."""
    order_D = np.argsort(rows_D, kind="stable")
    sorted_D = rows_D[order_D]
    before_D = np.empty_like(rows_D)
    before_D[order_D] = np.arange(len(rows_D)) - np.searchsorted(sorted_D, sorted_D)
    return before_D
