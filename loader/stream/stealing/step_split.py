"""Dynamic tail: the part of a step that ranks take at run time, as they become free.

Predicted costs have errors: with 5 % per microbatch, 128 ranks idle 6 % under any static plan. A small part of each
step is therefore cut into short pieces. Every piece has a home, the rank that runs it by plan, and a few more
ranks that read it. The first free one claims it (`reelweave.loader.stream.stealing.piece_queues`). Pure
functions, without communication.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.plan.balance import balance_costs
from reelweave.loader.settings import Settings

_COARSEST = 3  # maximum cost of a sample that is shared, in pieces
_MANY = 0.25  # cost per sample, in pieces, below which a piece holds many samples, each read by several ranks


class WorkStealingConfig(Settings):
    """Share of a step that ranks claim at run time."""

    share: float = Field(
        default=0.12, gt=0, le=0.5, description="maximum share of a step's cost to claim at run time"
    )
    piece: float = Field(
        default=0.02,
        gt=0,
        le=0.5,
        description="maximum cost of a piece, as a share of a rank's mean load, if samples allow",
    )
    readers: int = Field(default=4, ge=2, le=64, description="ranks that read each piece, its home included")


@dataclass(frozen=True, eq=False)
class StepSplit:
    """Step divided into fixed microbatches and shared pieces.

    Attributes:
        fixed: int64 [F], numbers of the microbatches that stay whole; every rank has at least one.
        fixed_rank: int64 [F], rank of each fixed microbatch.
        micro: int64 [P], number of the microbatch that each piece is cut from; sorted by home, then in the order of
            claims.
        start: int64 [P], number of the piece's first sample in its microbatch.
        size: int64 [P], number of samples of each piece.
        home: int64 [P], rank that runs the piece unless another rank claims it first.
    """

    fixed: IndexArray
    fixed_rank: IndexArray
    micro: IndexArray
    start: IndexArray
    size: IndexArray
    home: IndexArray


def split_step(
    costs: Floats, sizes: IndexArray, counts: Flags, fixed_s: float, ranks: int, config: WorkStealingConfig
) -> StepSplit:
    """Divide a step into fixed microbatches and shared pieces.

    Pieces come first from microbatches whose samples cost about as much as a piece, dearest first. Such
    pieces hold the fewest samples, and all readers of a piece read all of its samples. If these do not
    suffice, dearer samples follow, cheapest first, which make larger pieces. Samples of which a piece needs
    many come last.

    Args:
        costs: float64 [M], cost of each microbatch.
        sizes: int64 [M], B of each microbatch.
        counts: bool [M], False for fillers, which are never shared.
        fixed_s: part of a microbatch's cost that does not grow with B.
        ranks: number of ranks, at most M.
        config: share and size of the pieces.
    """
    # Microbatches in the order in which they are worth sharing; see above.
    load = costs.sum() / ranks
    sample = (costs - fixed_s) / sizes
    fine = np.flatnonzero(counts & (sample + fixed_s <= _COARSEST * config.piece * load))
    part = (sample[fine] + fixed_s) / (config.piece * load)
    tier = np.where(part > 1, 1, np.where(part < _MANY, 2, 0))
    order = fine[np.lexsort((np.where(tier == 1, part, -part), tier))]
    # As many as the shared part of the cost needs; each rank keeps one at least.
    max_pieces = min(
        len(costs) - ranks, int(np.searchsorted(np.cumsum(costs[order]), config.share * costs.sum())) + 1
    )
    shared = order[:max_pieces]
    fixed = np.setdiff1d(np.arange(len(costs)), shared)
    rank = balance_costs(costs[fixed], ranks)
    # Pieces of nearly equal size, and whose they are at first.
    parts = np.clip(np.ceil(costs[shared] / (config.piece * load)), 1, sizes[shared]).astype(np.int64)
    micro, part = (
        np.repeat(shared, parts),
        np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts),
    )
    times = np.repeat(parts, parts)
    start, end = part * sizes[micro] // times, (part + 1) * sizes[micro] // times
    cost = fixed_s + (end - start) * sample[micro]
    home = _homes(cost, np.bincount(rank, costs[fixed], minlength=ranks).astype(np.float64))
    by_home = np.lexsort((-cost, home))
    return StepSplit(fixed, rank, micro[by_home], start[by_home], (end - start)[by_home], home[by_home])


def victims(rank: int, ranks: int, readers: int) -> IndexArray:
    """Return the homes whose pieces a rank reads, too, at distances spread over all ranks; int64 [readers - 1].

    Distances grow by a constant factor, as in a hypercube, so free ranks reach late ones anywhere.
    """
    other_readers = min(readers, ranks) - 1
    distances = np.unique(
        np.round(ranks ** (np.arange(other_readers) / max(other_readers, 1))).astype(np.int64)
    )
    return np.asarray((rank + distances[distances < ranks]) % ranks)


def _homes(cost: Floats, loads: Floats) -> IndexArray:
    """Assign each piece to the least loaded rank, largest first."""
    heap = [(load, rank) for rank, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    home, values = np.empty(len(cost), np.int64), cost.tolist()
    for index in np.argsort(-cost, kind="stable").tolist():
        load, rank = heap[0]
        home[index] = rank
        heapq.heapreplace(heap, (load + values[index], rank))
    return home
