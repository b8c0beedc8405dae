"""Order of ranks that the menu's blocks are laid over: stragglers last, so that few blocks have one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.schedule import Schedule

T = TypeVar("T")


@dataclass(frozen=True)
class RankOrder:
    """Permutation between the planner's GPUs and ranks.

    Attributes:
        ranks: rank of each of the planner's GPUs.
    """

    ranks: tuple[int, ...]

    @classmethod
    def of(cls, count: int, slow: Collection[int] = (), per_node: int | None = None) -> "RankOrder":
        """Return the ranks as they come, with slow ones last in their node, and nodes with slow ranks last.

        They change places with others, so that most blocks keep their ranks.

        Args:
            count: number of ranks.
            slow: ranks that are slow.
            per_node: ranks of a node; None: all ranks share one node.
        """
        per_node = per_node or count
        nodes = [
            _with_last(range(first, min(first + per_node, count)), lambda rank: rank in slow)
            for first in range(0, count, per_node)
        ]
        if count % per_node == 0:
            nodes = _with_last(nodes, lambda node: any(rank in slow for rank in node))
        return cls(tuple(rank for node in nodes for rank in node))

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Planner's GPU of each rank."""
        return {rank: gpu for gpu, rank in enumerate(self.ranks)}

    def groups(self, menu: GroupMenu) -> list[tuple[int, ...]]:
        """Return the ranks of all groups of a menu, rising."""
        return [self._ranks_of(gpus) for gpus in menu.groups()]

    def on_ranks(self, schedule: Schedule) -> Schedule:
        """Return the planner's schedule on ranks."""
        return Schedule.of(
            (run._replace(gpus=self._ranks_of(run.gpus)) for run in schedule.runs), schedule.gpus
        )

    def _ranks_of(self, gpus: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(self.ranks[gpu] for gpu in gpus))


def _with_last(items: Sequence[T], belongs_last: Callable[[T], bool]) -> list[T]:
    """Exchange items such that those that belong last are last; all others that can stay do."""
    ordered, begin = list(items), len(items) - sum(map(belongs_last, items))
    early = [index for index in range(begin) if belongs_last(ordered[index])]
    late = [index for index in range(begin, len(ordered)) if not belongs_last(ordered[index])]
    for i, j in zip(early, late, strict=True):
        ordered[i], ordered[j] = ordered[j], ordered[i]
    return ordered
