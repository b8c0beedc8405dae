"""Process groups of a run: those of a fixed menu, made and connected once when it begins.

A communicator costs memory on its GPUs and seconds to make, and making one involves all processes. So plans choose
among these, and others are made only with a new menu, between two steps.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

from reelweave.loader.errors import RunError
from reelweave.train.distributed.groups import to_all
from reelweave.train.distributed.world import World
from reelweave.train.parallel.context.context import ContextParallel

Group = tuple[int, ...]


class GroupPool:
    """Process groups of one process.

    Args:
        world: all processes.
        heads: attention heads of the DiT; the largest common divisor of heads and ranks exchanges heads
            (Ulysses), rings join the rest.
        menu: groups that cascades may have, the same on all processes.

    Attributes:
        channel: Gloo group of all processes, used for messages alone; None with one process.
        made: number of communicators that this process was in, released ones included.
    """

    def __init__(self, world: World, heads: int, menu: Iterable[Group]) -> None:
        self._world, self._heads = world, heads
        # Placeholders stand for groups of other processes.
        self._groups: dict[Group, dist.ProcessGroup] = {}
        self.made = 0
        self.channel: dist.ProcessGroup | None = None
        self._alone: dist.ProcessGroup | None = None
        if world.size > 1:
            self.channel = self._make_group(list(range(world.size)), backend="gloo")
            # A group of one rank needs no collective, and no communicator of the GPU.
            self._alone = self._make_group([world.rank], backend="gloo", use_local_synchronization=True)
        self.use(menu)

    def use(self, menu: Iterable[Group]) -> None:
        """Release the groups that a menu lacks, and make those that are missing; a collective of all processes.

        Args:
            menu: groups that cascades may have from now on, the same on all processes.
        """
        needed, world = communicators(menu, self._heads), self._world
        # Released first, so that a GPU never holds the buffers of two menus.
        for ranks in sorted(self._groups.keys() - needed):
            released = self._groups.pop(ranks)
            if released is not dist.group.WORLD:
                dist.destroy_process_group(released)
        fresh = [ranks for ranks in needed if ranks not in self._groups]
        for ranks in fresh:
            # Every process counts every group, so that its members agree on its name.
            group = dist.group.WORLD if len(ranks) == world.size else self._make_group(list(ranks))
            assert group is not None
            self._groups[ranks] = group
        # NCCL connects a pair at its first message, which would be within a step. All ranks have the same order.
        for ranks in fresh:
            if world.rank in ranks:
                to_all(self._groups[ranks], world.device)
                self.made += 1

    def group(self, ranks: Group) -> dist.ProcessGroup:
        """Return the group of two or more ranks that include this one.

        Raises:
            RunError: the menu lacks the group.
        """
        try:
            return self._groups[ranks]
        except KeyError:
            raise RunError(
                f"a plan has a cascade on ranks {', '.join(map(str, ranks))}, a group that was not made when the run"
                " began: plan with this run's menu"
            ) from None

    def context(self, ranks: Group) -> ContextParallel | None:
        """Return context parallelism over the ranks of a DiT that include this one; None for one rank."""
        if len(ranks) == 1:
            return None
        near = _near(len(ranks), self._heads)
        rings, ulysses = _rings(ranks, near), _ulysses(ranks, near)
        rank = self._world.rank
        return ContextParallel(self._own(rings, rank), self._own(ulysses, rank), self.group(ranks))

    def _make_group(self, ranks: list[int], **how: Any) -> dist.ProcessGroup:
        make: Any = dist.new_group
        group: dist.ProcessGroup = make(
            ranks, timeout=self._world.timeout, **how
        )  # a placeholder on other ranks
        return group

    def _own(self, groups: Sequence[Group], rank: int) -> dist.ProcessGroup:
        ranks = next(group for group in groups if rank in group)
        process_group = self.group(ranks) if len(ranks) > 1 else self._alone
        assert process_group is not None
        return process_group


def communicators(menu: Iterable[Group], heads: int) -> list[Group]:
    """Return the communicators of a menu, narrow ones first: its groups, and the parts that attention exchanges in."""
    rank_sets = set[Group]()
    for ranks in menu:
        near = _near(len(ranks), heads)
        rank_sets.update([ranks, *_ulysses(ranks, near), *_rings(ranks, near)])
    return sorted((ranks for ranks in rank_sets if len(ranks) > 1), key=lambda ranks: (len(ranks), ranks))


def _near(degree: int, heads: int) -> int:
    """Return the number of ranks that exchange heads: the largest common divisor."""
    return math.gcd(degree, heads)


def _ulysses(ranks: Group, near: int) -> list[Group]:
    """Return groups of adjacent ranks."""
    return [ranks[start : start + near] for start in range(0, len(ranks), near)]


def _rings(ranks: Group, near: int) -> list[Group]:
    return [ranks[offset::near] for offset in range(near)]
