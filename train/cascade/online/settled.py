"""Order of ranks that follows the stragglers which stay.

A new order costs communicators. So only ranks that were stragglers in some steps in a row move, they never move back,
and the number of orders is bounded. Plans go round all other stragglers with the groups that there are.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from reelweave.train.cascade.online.correction import Correction
from reelweave.train.cascade.rank_order import RankOrder

_STAYS = 2  # steps in a row; a straggler that plans avoid altogether is soon forgotten


@dataclass(frozen=True)
class Learned:
    """Results of measured steps that plans use.

    Attributes:
        order: order of ranks.
        correction: factors of the cost model, and stragglers, by rank.
    """

    order: RankOrder
    correction: Correction = field(default_factory=Correction)


class SettledOrder:
    """Order of ranks, with the stragglers that have stayed last: a result of what was observed alone.

    Args:
        count: number of ranks.
        per_node: ranks of a node.
        max_changes: number of new orders.

    Attributes:
        order: current order.
        changes: number of orders after the first.
    """

    def __init__(self, count: int, per_node: int, max_changes: int) -> None:
        self._count, self._per_node, self._max_changes = count, per_node, max_changes
        self._steps: dict[int, int] = {}
        self._last: frozenset[int] = frozenset()
        self.order = RankOrder.of(count)
        self.changes = 0

    def observe(self, slow: Collection[int]) -> RankOrder:
        """Count a step with these stragglers and return the order to plan with."""
        self._steps = {rank: self._steps.get(rank, 0) + 1 for rank in slow}
        stay = frozenset(rank for rank, steps in self._steps.items() if steps >= _STAYS)
        if self.changes < self._max_changes and not stay <= self._last:
            self._last |= stay
            order = RankOrder.of(self._count, self._last, self._per_node)
            self.changes += order != self.order
            self.order = order
        return self.order
