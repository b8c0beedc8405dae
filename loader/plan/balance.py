"""Load balancing of a step with one synchronization: an assignment of microbatches to ranks of equal cost.

Pure functions over costs. Only the ranks' sums count. Largest-first placement puts each microbatch on the least loaded
rank (LPT, Graham 1969). Then heavy and light ranks form pairs, which exchange microbatches to equalize their loads, all
pairs at once.

Time and memory are bounded for any costs. A rank offers a fixed number of its microbatches per round, and at
most ``_COMPARED`` exchanges are compared at once.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.plan.exchanges import ROUNDING, exchange_pairs, list_items, place_largest_first

_ROUNDS = 60
_GOOD_ENOUGH = 1e-4  # excess over the mean load; below it, errors of the cost model dominate
_SHIFTS = 7
_COMPILED_RANKS = 512  # from which compiled loops, which take a second to load, are worth it
_COMPARED = 500_000  # exchanges compared at once: 4 MB in float64
_OFFERED_ONE, _OFFERED_TWO = 64, 36  # offers of a rank per round, for exchanges one for one and two for two
_GOLDEN = 0.618034  # golden ratio: offers of successive rounds spread evenly over a rank's microbatches


class RankCapacity(NamedTuple):
    """Capacity of a rank: the ``sizes`` int64 [M] of its microbatches sum to at most ``limit``, and to more than 0."""

    sizes: IndexArray
    limit: int


def balance_costs(costs: Floats, ranks: int) -> IndexArray:
    """Return a rank for each microbatch; ranks may get different numbers of them, each at least one.

    Args:
        costs: float64 [M], cost of each microbatch; M is at least ``ranks``.
        ranks: number of ranks.

    Returns:
        int64 [M], equal for equal costs on every machine.
    """
    return exchange_items(costs, _largest_first(costs, ranks), np.zeros(ranks))


def least_load(costs: Floats, ranks: int) -> float:
    """Return a load that some rank has under every placement, a lower bound of the makespan.

    The bound is the maximum of the mean load, the dearest microbatch, and one sum for every k. Of the k x
    ranks + 1 dearest microbatches some rank gets k + 1. These cost at least the sum of the k + 1 cheapest
    among them. Source: Martello and Toth, "Knapsack Problems", 1990, bound L2 of P||Cmax.

    Args:
        costs: float64 [M], cost of each microbatch.
        ranks: number of ranks.
    """
    dearest_first = np.sort(costs)[::-1]
    reach = np.concatenate([[0.0], np.cumsum(dearest_first)])
    k = np.arange((len(costs) - 1) // ranks + 1)
    together = reach[k * ranks + 1] - reach[k * (ranks - 1)]
    return float(max(costs.sum() / ranks, together.max()))


def _largest_first(costs: Floats, ranks: int) -> IndexArray:
    """Place by LPT; the first ``ranks`` microbatches go to one rank each, so no rank stays empty."""
    dearest_first = np.argsort(-costs, kind="stable")
    rank_of = np.empty(len(costs), np.int64)
    if ranks >= _COMPILED_RANKS:
        place_largest_first(dearest_first, np.ascontiguousarray(costs), ranks, rank_of)
        return rank_of
    heap = [(0.0, rank) for rank in range(ranks)]
    values = costs.tolist()
    for item_index in dearest_first.tolist():
        load, rank = heap[0]
        rank_of[item_index] = rank
        heapq.heapreplace(heap, (load + values[item_index], rank))
    return rank_of


def exchange_items(
    costs: Floats,
    rank_of: IndexArray,
    targets: Floats,
    room: RankCapacity | None = None,
    rounds: int = _ROUNDS,
    enough: float = _GOOD_ENOUGH,
) -> IndexArray:
    """Improve a placement in rounds: the heaviest rank exchanges with the lightest, the second with the second, ...

    In every second round the outermost pairs may exchange two microbatches for two, which takes longer.

    Args:
        costs: float64 [M], cost of each microbatch.
        rank_of: int64 [M], rank of each microbatch.
        targets: float64 [ranks], desired excess of each rank's load.
        room: capacity of a rank; None is unbounded.
        rounds: maximum number of rounds.
        enough: tolerated excess of a rank's load, in mean loads.

    Returns:
        int64 [M], new rank of each microbatch.
    """
    rank_of, ranks = rank_of.copy(), len(targets)
    for round_index in range(rounds):
        loads = np.bincount(rank_of, weights=costs, minlength=ranks).astype(np.float64) - targets
        if loads.max() <= loads.mean() + enough * costs.sum() / ranks:
            break
        by_load = np.argsort(-loads, kind="stable")
        heavy, light = by_load[: ranks // 2], by_load[::-1][: ranks // 2]
        # A shift pairs other ranks, because the same two have nothing left to exchange.
        light = np.roll(light, round_index // 2 % _SHIFTS)
        two_for_two = round_index % 2 == 1
        offered = _OFFERED_TWO if two_for_two else _OFFERED_ONE
        items = _items(_offer_items(costs, rank_of, offered, round_index * _GOLDEN % 1), rank_of, ranks)
        bundles = _bundles(items.shape[1], two_for_two)
        at_once = max(1, _COMPARED // bundles.shape[1] ** 2)
        if two_for_two or room is not None:
            heavy, light = heavy[:at_once], light[:at_once]
        if room is None and ranks >= _COMPILED_RANKS:
            exchange_pairs(np.ascontiguousarray(costs), rank_of, loads, items, bundles, heavy, light)
            continue
        for first in range(0, len(heavy), at_once):
            some = slice(first, first + at_once)
            _meet(costs, rank_of, loads, items, bundles, heavy[some], light[some], room)
    return rank_of


def _meet(
    costs: Floats,
    rank_of: IndexArray,
    loads: Floats,
    items: IndexArray,
    bundles: IndexArray,
    heavy: IndexArray,
    light: IndexArray,
    room: RankCapacity | None,
) -> None:
    """Exchange between each pair of ranks the bundles that best equalize their loads, in place.

    Args:
        costs: float64 [M], cost of each microbatch.
        rank_of: int64 [M], rank of each microbatch; changed in place.
        loads: float64 [ranks], load of each rank.
        items: offered microbatches, see `_items`.
        bundles: int64 [2, n], pairs of columns of ``items`` to exchange together.
        heavy: int64 [P], heavy rank of each pair.
        light: int64 [P], light rank of each pair.
        room: capacity of a rank, see `exchange_items`.
    """

    def net_moves(values: NDArray[Any]) -> NDArray[Any]:
        """Return the net value that each exchange takes from the heavy rank, [P, n, n]."""
        given_Pn, taken_Pn = (
            np.where(items[ranks] >= 0, values[items[ranks]], 0)[:, bundles].sum(axis=1)
            for ranks in (heavy, light)
        )
        return np.asarray(given_Pn[:, :, None] - taken_Pn[:, None, :])

    # What would be left of the gap between the two, for every exchange of two bundles.
    gap_P = loads[heavy] - loads[light]
    left_Pnn = np.abs(gap_P[:, None, None] - 2 * net_moves(costs))
    # Exchanges that exceed a rank's capacity, or empty the heavy rank, do not count.
    if room is not None:
        held_P11 = np.bincount(rank_of, weights=room.sizes, minlength=len(loads))[:, None, None]
        more_Pnn = net_moves(room.sizes)
        fits_Pnn = (held_P11[light] + more_Pnn <= room.limit) & (held_P11[heavy] - more_Pnn <= room.limit)
        fits_Pnn &= held_P11[heavy] > more_Pnn
        left_Pnn = np.where(fits_Pnn, left_Pnn, np.inf)
    # The best exchange of each pair is made, if it gains more than rounding.
    left_P = left_Pnn.reshape(len(heavy), -1)
    best_P = left_P.argmin(axis=1)
    better_P = left_P[np.arange(len(heavy)), best_P] < np.abs(gap_P) * (1 - ROUNDING)
    for giver_P, taker_P, bundle_P in (
        (heavy, light, best_P // bundles.shape[1]),
        (light, heavy, best_P % bundles.shape[1]),
    ):
        for column_P in bundles[:, bundle_P]:
            moved_P = items[giver_P, column_P]
            moves_P = better_P & (moved_P >= 0)
            rank_of[moved_P[moves_P]] = taker_P[moves_P]


def _bundles(columns: int, two: bool) -> IndexArray:
    """Return bundles [2, n] of one microbatch or none, with ``two`` also of two; the last column stands for none."""
    none = columns - 1
    singles = np.stack([np.arange(columns), np.full(columns, none)])
    if not two:
        return singles
    return np.concatenate([np.stack(np.triu_indices(columns, 1)), [[none], [none]]], axis=1)


def _offer_items(costs: Floats, rank_of: IndexArray, max_items: int, phase: float) -> IndexArray:
    """Return the numbers of at most ``max_items`` microbatches of each rank, evenly spaced by cost; rising, int64 [n].

    Args:
        costs: float64 [M], cost of each microbatch.
        rank_of: int64 [M], rank of each microbatch.
        max_items: maximum number of microbatches per rank.
        phase: offset in [0, 1); other phases select other microbatches of ranks with more than ``max_items``.
    """
    counts = np.bincount(rank_of)
    if counts.max() <= max_items:
        return np.arange(len(rank_of))
    order = np.lexsort((-costs, rank_of))
    count = counts[rank_of[order]]
    order_index = np.arange(len(order)) - (np.cumsum(counts) - counts)[rank_of[order]]
    # Select the places at which a line with slope most / count crosses a whole number.
    passes = np.floor((order_index + 1) * max_items / count + phase) > np.floor(
        order_index * max_items / count + phase
    )
    return np.sort(order[passes | (count <= max_items)])


def _items(offered: IndexArray, rank_of: IndexArray, ranks: int) -> IndexArray:
    """Return the offered microbatches of each rank, [ranks, most + 1], padded with at least one -1."""
    rank = rank_of[offered]
    counts = np.bincount(rank, minlength=ranks)
    items = np.full((ranks, counts.max() + 1), -1)
    if ranks >= _COMPILED_RANKS:
        list_items(offered, rank_of, items, np.zeros(ranks, np.int64))
        return items
    order = np.argsort(rank, kind="stable")
    firsts = np.cumsum(counts) - counts
    items[rank[order], np.arange(len(rank)) - firsts[rank[order]]] = offered[order]
    return items
