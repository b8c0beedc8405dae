"""Assignment of tiles to ranks, balanced by their size."""

import heapq
from collections.abc import Sequence


def assign(costs: Sequence[int], ranks: int) -> list[int]:
    """Return the rank of each tile: the largest tile left goes to the rank with the least work.

    The largest load is at most 4/3 of the best one (Graham 1969, theorem 2). Rank 0 has a tile.
    """
    loads = [(0, rank) for rank in range(ranks)]
    owners = [0] * len(costs)
    for tile in sorted(range(len(costs)), key=lambda tile: (-costs[tile], tile)):
        load, rank = heapq.heappop(loads)
        owners[tile] = rank
        heapq.heappush(loads, (load + costs[tile], rank))
    return owners


def efficiency(costs: Sequence[int], owners: Sequence[int], ranks: int) -> float:
    """Return the mean work of the ranks over the largest: the share of time in which they decode."""
    loads = [0] * ranks
    for cost, rank in zip(costs, owners, strict=True):
        loads[rank] += cost
    return sum(loads) / ranks / max(loads)
