"""Process groups by their ranks, made before a step needs them and kept for the next ones.

A communicator costs memory and seconds on GPUs, so none is made while cascades run, and those of groups that plans
come back to are kept: the planner's are aligned, and few.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

from train.cascade.problem import Module
from train.cascade.schedule import Run
from train.distributed.world import World
from train.parallel.context.context import ContextParallel

Group = tuple[int, ...]


class Pool:
    """The groups of one process.

    Args:
        world: all processes.
        heads: of the DiT's attention; as many ranks as divide them exchange heads, the others make a ring of these.
        capacity: groups that a rank is part of, at most, where a step needs no more.

    Attributes:
        channel: all processes over Gloo, beside whatever else they exchange; None where there is one process.
        made: groups, from the beginning.
    """

    def __init__(self, world: World, heads: int, capacity: int = 64) -> None:
        self._world, self._heads, self._capacity = world, heads, capacity
        self._groups: dict[Group, dist.ProcessGroup] = {}  # the one that was needed last is last
        self.made = 0
        self.channel: dist.ProcessGroup | None = None
        self._alone: dist.ProcessGroup | None = None
        if world.size > 1:
            self.channel = _made(list(range(world.size)), backend="gloo")
            # Nobody but its member need know of it.
            self._alone = _made([world.rank], use_local_synchronization=True)

    def prepare_runs(self, runs: Iterable[Run]) -> None:
        """Makes the groups of a step (`prepare`)."""
        self.prepare(group for run in runs for group in groups_of(run, self._heads))

    def prepare(self, groups: Iterable[Group]) -> None:
        """Makes groups that are not there; all processes call it with the same ones, those of one rank are left out.

        What is longest out of use is given up while one of its ranks is part of too many.
        """
        needed = dict.fromkeys(group for group in groups if len(group) > 1)
        for group in needed:
            if group in self._groups:
                self._groups[group] = self._groups.pop(group)
            else:
                self._groups[group] = _made(list(group))
                self.made += 1
        counts = [sum(rank in group for group in self._groups) for rank in range(self._world.size)]
        for group in [group for group in self._groups if group not in needed]:
            if all(counts[rank] <= self._capacity for rank in group):
                continue
            for rank in group:
                counts[rank] -= 1
            old = self._groups.pop(group)
            if self._world.rank in group:
                dist.destroy_process_group(old)

    def group(self, ranks: Group) -> dist.ProcessGroup:
        """One of two ranks or more that was prepared, seen from a member."""
        return self._groups[ranks]

    def context(self, ranks: Group) -> ContextParallel | None:
        """Context parallelism over the ranks of a DiT, of whom this is one; None for one rank."""
        if len(ranks) == 1:
            return None
        near = _near(len(ranks), self._heads)
        rings, ulysses = _rings(ranks, near), _ulysses(ranks, near)
        own = self._world.rank
        return ContextParallel(self._own(rings, own), self._own(ulysses, own), self.group(ranks))

    def _own(self, groups: Sequence[Group], rank: int) -> dist.ProcessGroup:
        ranks = next(group for group in groups if rank in group)
        found = self._groups[ranks] if len(ranks) > 1 else self._alone
        assert found is not None
        return found


def _made(ranks: list[int], **how: Any) -> dist.ProcessGroup:
    make: Any = dist.new_group
    group: dist.ProcessGroup = make(ranks, **how)  # for others than its ranks, a number that stands for none
    return group


def groups_of(run: Run, heads: int) -> list[Group]:
    """What groups a run needs."""
    ranks = run.gpus
    found = [ranks]
    if run.cascade.module == Module.DIT:
        near = _near(len(ranks), heads)
        found += [*_ulysses(ranks, near), *_rings(ranks, near)]
    return found


def _near(degree: int, heads: int) -> int:
    """Ranks that exchange heads: as many as divide both."""
    return math.gcd(degree, heads)


def _ulysses(ranks: Group, near: int) -> list[Group]:
    """Adjacent ranks."""
    return [ranks[start : start + near] for start in range(0, len(ranks), near)]


def _rings(ranks: Group, near: int) -> list[Group]:
    return [ranks[place::near] for place in range(near)]
