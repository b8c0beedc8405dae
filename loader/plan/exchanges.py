"""Compiled loops of load balancing over many ranks; `reelweave.loader.plan.balance` has the same without them."""

import heapq

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.compiled import compiled

ROUNDING = 1e-9
"""Gain of an exchange, as a share of the gap, that is rounding only."""


@compiled
def place_largest_first(dearest_first: IndexArray, costs: Floats, ranks: int, rank_of: IndexArray) -> None:
    """Place each microbatch on the least loaded rank, the first one of equals.

    Args:
        dearest_first: int64 [M], numbers of microbatches in the order of placement.
        costs: float64 [M], cost of each microbatch.
        ranks: number of ranks.
        rank_of: int64 [M], rank of each microbatch; written.
    """
    heap = [(0.0, rank) for rank in range(ranks)]
    for item in dearest_first:
        load, rank = heap[0]
        rank_of[item] = rank
        heapq.heapreplace(heap, (load + costs[item], rank))


@compiled
def list_items(offered: IndexArray, rank_of: IndexArray, items: IndexArray, counts: IndexArray) -> None:
    """Write the offered microbatches of each rank into its row, in their order.

    Args:
        offered: int64 [n], numbers of microbatches.
        rank_of: int64 [M], rank of each microbatch.
        items: int64 [ranks, most + 1]; written from the first column on.
        counts: int64 [ranks], zeros; counts the microbatches of each rank.
    """
    for item in offered:
        rank = rank_of[item]
        items[rank, counts[rank]] = item
        counts[rank] += 1


@compiled
def exchange_pairs(
    costs: Floats,
    rank_of: IndexArray,
    loads: Floats,
    items: IndexArray,
    bundles: IndexArray,
    heavy: IndexArray,
    light: IndexArray,
) -> None:
    """Exchange between each pair of ranks the bundles that best equalize their loads, in place.

    Args:
        costs: float64 [M], cost of each microbatch.
        rank_of: int64 [M], rank of each microbatch; changed in place.
        loads: float64 [ranks], load of each rank.
        items: int64 [ranks, most + 1], offered microbatches of each rank, padded with -1.
        bundles: int64 [2, n], pairs of columns of ``items`` to exchange together.
        heavy: int64 [P], heavy rank of each pair.
        light: int64 [P], light rank of each pair; no rank is in two pairs.
    """
    count = bundles.shape[1]
    sums = np.empty((2, count))  # cost of each bundle of the heavy rank, and of the light one
    for pair in range(len(heavy)):
        pair_ranks = heavy[pair], light[pair]
        for side in range(2):
            row = items[pair_ranks[side]]
            for index in range(count):
                first, second = row[bundles[0, index]], row[bundles[1, index]]
                sums[side, index] = (costs[first] if first >= 0 else 0.0) + (
                    costs[second] if second >= 0 else 0.0
                )
        # What would be left of the gap between the two, for every exchange of two bundles; the first best one counts.
        gap = loads[heavy[pair]] - loads[light[pair]]
        best, best_given, best_taken = np.inf, 0, 0
        for given in range(count):
            for taken in range(count):
                left = abs(gap - 2.0 * (sums[0, given] - sums[1, taken]))
                if left < best:
                    best, best_given, best_taken = left, given, taken
        if best >= abs(gap) * (1 - ROUNDING):
            continue
        for column in range(2):
            item = items[heavy[pair], bundles[column, best_given]]
            if item >= 0:
                rank_of[item] = light[pair]
            item = items[light[pair], bundles[column, best_taken]]
            if item >= 0:
                rank_of[item] = heavy[pair]
