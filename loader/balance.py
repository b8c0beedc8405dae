"""Which rank runs which microbatch of a step, so that all ranks have the same work.

Pure functions over costs; nothing here knows samples. In a step with one synchronisation only the sums of the ranks
count: the largest microbatches are placed first, each on the rank with the least work (LPT, Graham 1969), then heavy
and light ranks are paired and exchange what brings them nearest, all pairs at once.
"""

import heapq

import numpy as np

from loader.arrays import Floats, Places

_ROUNDS = 60
_GOOD_ENOUGH = 1e-4  # of the mean load above it; below, the cost model is the larger error
_SHIFTS = 7
_BUNDLES_COMPARED = 500_000


def balanced(costs: Floats, ranks: int) -> Places:
    """A rank for each microbatch; ranks may get different numbers of them, and each at least one.

    Args:
        costs: float64 [M], M at least ``ranks``.
        ranks: of the step.

    Returns:
        int64 [M], the same for the same costs on every machine.
    """
    return _exchanged(costs, _largest_first(costs, ranks), ranks)


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


def _exchanged(costs: Floats, placed: Places, ranks: int) -> Places:
    """Improves by rounds: the heaviest rank meets the lightest, the next heaviest the next, and so on.

    In every other round the outermost pairs may exchange two microbatches for two, which takes longer.
    """
    placed = placed.copy()
    for number in range(_ROUNDS):
        loads = np.bincount(placed, weights=costs, minlength=ranks).astype(np.float64)
        if loads.max() <= loads.mean() * (1 + _GOOD_ENOUGH):
            break
        by_load = np.argsort(-loads, kind="stable")
        heavy, light = by_load[: ranks // 2], by_load[::-1][: ranks // 2]
        # Other pairs meet as rounds go on: the same two have nothing left to offer each other.
        light = np.roll(light, number // 2 % _SHIFTS)
        items = _items(placed, ranks)
        if number % 2:
            bundles = _bundles(items.shape[1])
            outermost = max(1, _BUNDLES_COMPARED // bundles.shape[1] ** 2)
            _meet(costs, placed, loads, items, bundles, heavy[:outermost], light[:outermost])
        else:
            none = np.full(items.shape[1], items.shape[1] - 1)
            _meet(costs, placed, loads, items, np.stack([np.arange(len(none)), none]), heavy, light)
    return placed


def _meet(
    costs: Floats,
    placed: Places,
    loads: Floats,
    items: Places,
    bundles: Places,
    heavy: Places,
    light: Places,
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
    """
    held = np.where(items >= 0, costs[items], 0.0)
    given_Pn, taken_Pn = (held[ranks][:, bundles].sum(axis=1) for ranks in (heavy, light))
    gap_P = loads[heavy] - loads[light]
    left_P = np.abs(gap_P[:, None, None] - 2 * (given_Pn[:, :, None] - taken_Pn[:, None, :])).reshape(
        len(heavy), -1
    )
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


def _bundles(columns: int) -> Places:
    """Pairs of columns of which the last is empty: two microbatches, one, or none, [2, n]."""
    first, second = np.triu_indices(columns, 1)
    none = columns - 1
    return np.stack([np.append(first, none), np.append(second, none)])


def _items(placed: Places, ranks: int) -> Places:
    """The microbatches of each rank, [ranks, most + 1], filled up with at least one -1."""
    counts = np.bincount(placed, minlength=ranks)
    order = np.argsort(placed, kind="stable")
    firsts = np.cumsum(counts) - counts
    items = np.full((ranks, counts.max() + 1), -1)
    items[placed[order], np.arange(len(placed)) - firsts[placed[order]]] = order
    return items
