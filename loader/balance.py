"""Which rank runs which microbatch of a step, so that all ranks have the same work.

Pure functions over costs; nothing here knows samples. In a step with one synchronisation only the sums of the ranks
count: the largest microbatches are placed first, each on the rank with the least work (LPT, Graham 1969), then heavy
and light ranks are paired and exchange what brings them nearest, all pairs at once.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.arrays import Floats, Places

_ROUNDS = 60
_GOOD_ENOUGH = 1e-4  # of the mean load above it; below, the cost model is the larger error
_SHIFTS = 7
_BUNDLES_COMPARED = 500_000


class Room(NamedTuple):
    """How much fits on a rank: the ``sizes`` of what it runs, int64 [M], add up to ``limit`` at most, and not to 0."""

    sizes: Places
    limit: int


def balanced(costs: Floats, ranks: int) -> Places:
    """A rank for each microbatch; ranks may get different numbers of them, and each at least one.

    Args:
        costs: float64 [M], M at least ``ranks``.
        ranks: of the step.

    Returns:
        int64 [M], the same for the same costs on every machine.
    """
    return exchanged(costs, _largest_first(costs, ranks), np.zeros(ranks))


def _largest_first(costs: Floats, ranks: int) -> Places:
    """LPT. The first ``ranks`` microbatches come to one rank each, so none stays empty."""
    heap = [(0.0, rank) for rank in range(ranks)]
    placed = np.empty(len(costs), np.int64)
    values = costs.tolist()
    for number in np.argsort(-costs, kind="stable").tolist():
        load, rank = heap[0]
        placed[number] = rank
        heapq.heapreplace(heap, (load + values[number], rank))
    return placed


def exchanged(
    costs: Floats,
    placed: Places,
    targets: Floats,
    room: Room | None = None,
    rounds: int = _ROUNDS,
    enough: float = _GOOD_ENOUGH,
) -> Places:
    """Improves by rounds: the heaviest rank meets the lightest, the next heaviest the next, and so on.

    In every other round the outermost pairs may exchange two microbatches for two, which takes longer.

    Args:
        costs: float64 [M].
        placed: int64 [M], the rank of each.
        targets: float64 [ranks], what each should have more than others.
        room: what a rank may hold at most; None is no bound.
        rounds: at most.
        enough: a rank may have so much too much, in units of the mean load.

    Returns:
        int64 [M], the new rank of each.
    """
    placed, ranks = placed.copy(), len(targets)
    for number in range(rounds):
        loads = np.bincount(placed, weights=costs, minlength=ranks).astype(np.float64) - targets
        if loads.max() <= loads.mean() + enough * costs.sum() / ranks:
            break
        by_load = np.argsort(-loads, kind="stable")
        heavy, light = by_load[: ranks // 2], by_load[::-1][: ranks // 2]
        # Other pairs meet as rounds go on: the same two have nothing left to offer each other.
        light = np.roll(light, number // 2 % _SHIFTS)
        items = _items(placed, ranks)
        two_for_two = number % 2 == 1
        bundles = _bundles(items.shape[1], two_for_two)
        if two_for_two or room is not None:
            outermost = max(1, _BUNDLES_COMPARED // bundles.shape[1] ** 2)
            heavy, light = heavy[:outermost], light[:outermost]
        _meet(costs, placed, loads, items, bundles, heavy, light, room)
    return placed


def _meet(
    costs: Floats,
    placed: Places,
    loads: Floats,
    items: Places,
    bundles: Places,
    heavy: Places,
    light: Places,
    room: Room | None,
) -> None:
    """Each pair of ranks exchanges the bundles that bring the two nearest, in place; none, where none does.

    Args:
        costs: float64 [M].
        placed: int64 [M], the rank of each; changed.
        loads: float64 [ranks].
        items: as of `_items`.
        bundles: int64 [2, n], columns of ``items`` that may be given together.
        heavy: int64 [P], ranks.
        light: int64 [P], others.
        room: as of `exchanged`.
    """

    def moved(values: NDArray[Any]) -> NDArray[Any]:
        """What each exchange takes from the heavy rank, [P, n, n]."""
        given_Pn, taken_Pn = (
            np.where(items[ranks] >= 0, values[items[ranks]], 0)[:, bundles].sum(axis=1)
            for ranks in (heavy, light)
        )
        return np.asarray(given_Pn[:, :, None] - taken_Pn[:, None, :])

    gap_P = loads[heavy] - loads[light]
    left_Pnn = np.abs(gap_P[:, None, None] - 2 * moved(costs))
    if room is not None:
        held_P11 = np.bincount(placed, weights=room.sizes, minlength=len(loads))[:, None, None]
        more_Pnn = moved(room.sizes)
        fits_Pnn = (held_P11[light] + more_Pnn <= room.limit) & (held_P11[heavy] - more_Pnn <= room.limit)
        fits_Pnn &= held_P11[heavy] > more_Pnn
        left_Pnn = np.where(fits_Pnn, left_Pnn, np.inf)
    left_P = left_Pnn.reshape(len(heavy), -1)
    best_P = left_P.argmin(axis=1)
    better_P = left_P[np.arange(len(heavy)), best_P] < np.abs(gap_P) * (1 - 1e-9)
    for giver_P, taker_P, bundle_P in (
        (heavy, light, best_P // bundles.shape[1]),
        (light, heavy, best_P % bundles.shape[1]),
    ):
        for column_P in bundles[:, bundle_P]:
            moved_P = items[giver_P, column_P]
            moves_P = better_P & (moved_P >= 0)
            placed[moved_P[moves_P]] = taker_P[moves_P]


def _bundles(columns: int, two: bool) -> Places:
    """What may be given together: one microbatch or none, with ``two`` also two; the last column is empty, [2, n]."""
    none = columns - 1
    one = np.stack([np.arange(columns), np.full(columns, none)])
    if not two:
        return one
    return np.concatenate([np.stack(np.triu_indices(columns, 1)), [[none], [none]]], axis=1)


def _items(placed: Places, ranks: int) -> Places:
    """The microbatches of each rank, [ranks, most + 1], filled up with at least one -1."""
    counts = np.bincount(placed, minlength=ranks)
    order = np.argsort(placed, kind="stable")
    firsts = np.cumsum(counts) - counts
    items = np.full((ranks, counts.max() + 1), -1)
    items[placed[order], np.arange(len(placed)) - firsts[placed[order]]] = order
    return items
