"""Which samples an epoch draws: of each leaf one pass after the other, each in an order of its own."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from loader.base.philox import shuffled
from loader.dataset.draws import Draws

_PURPOSE = 1 << 32  # of the random words; smaller ones belong to the plan

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
    """Epoch e takes draws floor(e x) to floor((e + 1) x) of a leaf with share x from its endless sequence of passes.

    After any number of epochs every leaf is thus less than one draw from its share, and no sample was drawn more than
    once oftener than another of its leaf.

    Args:
        rows: int64 [n] of each leaf; two leaves may share some.
        drawable: bool [n] of each leaf, which of its rows can be drawn.
        shares: of each leaf, draws in an epoch, 0 where nothing can be drawn.
        epoch: from 0.
        seed: of the whole run.
        begun: passes of each leaf before epoch 0; the draws are counted on from there.

    Returns:
        The draws, leaf after leaf.
    """
    before_N = np.zeros(1 + max(int(rows_n.max(initial=0)) for rows_n in rows), np.int64)
    pieces: list[tuple[int, Rows]] = []  # of one pass each, so that no row is in one twice
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
    """A pass. Its order comes from all rows; those that cannot be drawn are left out of it."""
    order_n = shuffled(seed, number, _PURPOSE + leaf, len(rows_n))
    return rows_n[order_n[drawable_n[order_n]]]
