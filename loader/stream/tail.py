"""Which part of a step is shared among ranks as they become free, and who may run it: the dynamic tail.

Costs are never exact: with 5 % of error in each microbatch, 128 ranks idle 6 % whatever the plan. So a small part of a
step is cut into pieces that are short for a rank. Every piece has a home, the rank that runs it by the plan, and some
other ranks read it too; whoever is free first takes it (`loader.stream.claims`). Pure functions; no rank asks another.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, Field

from loader.base.arrays import Flags, Floats, Places
from loader.plan.balance import balanced

_COARSEST = 3  # dearest sample that is shared, in pieces
_MANY = 0.25  # samples cheaper than this, in pieces, are many for their cost, and all are read several times


class TailConfig(BaseModel, frozen=True, extra="forbid"):
    """How much of a step ranks share as they go."""

    share: float = Field(default=0.12, gt=0, le=0.5, description="of a step's cost that is shared, at most")
    piece: float = Field(
        default=0.02,
        gt=0,
        le=0.5,
        description="cost of a piece at most, in mean loads of a rank, if samples allow",
    )
    readers: int = Field(default=4, ge=2, le=64, description="ranks that read a piece, its home included")


@dataclass(frozen=True, eq=False)
class Tail:
    """A step in two parts.

    Attributes:
        fixed: int64 [F], numbers of the microbatches that stay whole; every rank has one or more of them.
        fixed_rank: int64 [F], who runs each.
        micro: int64 [P], microbatch that each piece is cut from; by home, and for one home in the order they are
            taken.
        start: int64 [P], number of its first sample there.
        size: int64 [P], its samples.
        home: int64 [P], rank that runs it unless another one is free earlier.
    """

    fixed: Places
    fixed_rank: Places
    micro: Places
    start: Places
    size: Places
    home: Places


def tail_of(
    costs: Floats, sizes: Places, counts: Flags, fixed_s: float, ranks: int, config: TailConfig
) -> Tail:
    """Divide a step into what is placed and what is shared.

    Pieces come from microbatches whose samples are about as dear as a piece may be, from the dearest of these samples
    on: so they hold as few samples as may be, all of which several ranks read. Where these are too little, from dearer
    samples, which make larger pieces, the cheapest first; then from those of which a piece takes many.

    Args:
        costs: float64 [M], of each microbatch.
        sizes: int64 [M], B of each.
        counts: bool [M], whether its samples count; fillers are never shared.
        fixed_s: part of a microbatch's cost that does not grow with its samples.
        ranks: of the step; M is at least as large.
        config: how much is shared.
    """
    load = costs.sum() / ranks
    sample = (costs - fixed_s) / sizes
    fine = np.flatnonzero(counts & (sample + fixed_s <= _COARSEST * config.piece * load))
    part = (sample[fine] + fixed_s) / (config.piece * load)
    tier = np.where(part > 1, 1, np.where(part < _MANY, 2, 0))
    order = fine[np.lexsort((np.where(tier == 1, part, -part), tier))]
    most = min(
        len(costs) - ranks, int(np.searchsorted(np.cumsum(costs[order]), config.share * costs.sum())) + 1
    )
    shared = order[:most]
    fixed = np.setdiff1d(np.arange(len(costs)), shared)
    rank = balanced(costs[fixed], ranks)
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
    return Tail(fixed, rank, micro[by_home], start[by_home], (end - start)[by_home], home[by_home])


def victims(rank: int, ranks: int, readers: int) -> Places:
    """Return the homes whose pieces a rank reads too, at distances that spread over all ranks; int64 [readers - 1].

    Late ranks then meet free ones wherever these are: distances grow by a constant factor, as in a hypercube.
    """
    others = min(readers, ranks) - 1
    distances = np.unique(np.round(ranks ** (np.arange(others) / max(others, 1))).astype(np.int64))
    return np.asarray((rank + distances[distances < ranks]) % ranks)


def _homes(cost: Floats, loads: Floats) -> Places:
    """Largest first, each to the rank with the least load."""
    heap = [(load, rank) for rank, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    home, values = np.empty(len(cost), np.int64), cost.tolist()
    for number in np.argsort(-cost, kind="stable").tolist():
        load, rank = heap[0]
        home[number] = rank
        heapq.heapreplace(heap, (load + values[number], rank))
    return home
