"""Draws of an epoch: successive passes over each leaf, each in its own random order."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from loader.base.philox import shuffled
from loader.dataset.draws import Draws

_PURPOSE = 1 << 32  # first Philox stream of leaves; plans use smaller ones

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


def draw(
    rows: Sequence[Rows],
    drawable: Sequence[Mask],
    shares: Sequence[Fraction],
    epoch: int,
    seed: int,
    begun: Sequence[Fraction],
) -> Draws:
    """Return the draws of an epoch: draws floor(e x) to floor((e + 1) x) of each leaf's endless sequence of passes.

    Here e is the epoch and x the leaf's share. After any number of epochs every leaf is less than one draw from its
    share. The draws of any two samples of a leaf differ by at most one.

    Args:
        rows: int64 [n] per leaf; leaves may overlap.
        drawable: bool [n] per leaf, True for rows that can be drawn.
        shares: draws of each leaf per epoch; 0 if nothing can be drawn.
        epoch: number of the epoch, from 0.
        seed: seed of the run.
        begun: passes over each leaf before epoch 0, from which its draws count on.

    Returns:
        Draws, leaf after leaf.
    """
    before_N = np.zeros(1 + max(int(rows_n.max(initial=0)) for rows_n in rows), np.int64)
    pieces: list[tuple[int, Rows]] = []  # one pass each, so no piece holds a row twice
    for leaf, (rows_n, drawable_n, share, before) in enumerate(
        zip(rows, drawable, shares, begun, strict=True)
    ):
        held = max(1, int(drawable_n.sum()))
        start, stop = (int(before * held + share * number) for number in (epoch, epoch + 1))
        passed, drawn = divmod(start, held)
        before_N[rows_n[drawable_n]] += passed
        for number in range(passed, -(-stop // held)):
            order = _order(rows_n, drawable_n, seed, leaf, number)[: stop - number * held]
            before_N[order[:drawn]] += 1
            pieces.append((leaf, order[drawn:]))
            drawn = 0
    passes = []
    for _, rows_d in pieces:
        passes.append(before_N[rows_d])
        before_N[rows_d] += 1
    none = np.zeros(0, np.int64)
    return Draws(
        np.concatenate([none, *(rows_d for _, rows_d in pieces)]),
        np.concatenate([none, *passes]),
        np.repeat(np.array([leaf for leaf, _ in pieces], np.int64), [len(rows_d) for _, rows_d in pieces]),
    )


def _order(rows_n: Rows, drawable_n: Mask, seed: int, leaf: int, number: int) -> Rows:
    """Return a pass: a permutation of all rows, without those that cannot be drawn."""
    order_n = shuffled(seed, number, _PURPOSE + leaf, len(rows_n))
    return rows_n[order_n[drawable_n[order_n]]]
