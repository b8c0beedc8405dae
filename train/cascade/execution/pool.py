"""Cache of process groups, created before a step and kept for later steps.

A communicator costs memory and seconds on GPUs, so none is made while cascades run. The planner's groups are
aligned and few, so that most are reused.
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
    """Process groups of one process.

    Args:
        world: all processes.
        heads: attention heads of the DiT; the largest common divisor of heads and ranks exchanges heads
            (Ulysses), rings join the rest.
        capacity: maximum number of cached groups per rank, unless a step needs more.

    Attributes:
        channel: Gloo group of all processes, used for messages alone; None with one process.
        made: number of groups made so far.
    """

    def __init__(self, world: World, heads: int, capacity: int = 64) -> None:
        self._world, self._heads, self._capacity = world, heads, capacity
        self._groups: dict[Group, dist.ProcessGroup] = {}  # least recently used first
        self.made = 0
        self.channel: dist.ProcessGroup | None = None
        self._alone: dist.ProcessGroup | None = None
        if world.size > 1:
            self.channel = _made(list(range(world.size)), backend="gloo")
            # A group of one rank needs no collective.
            self._alone = _made([world.rank], use_local_synchronization=True)

    def prepare_runs(self, runs: Iterable[Run]) -> None:
        """Make the groups of a step; see `prepare`."""
        self.prepare(group for run in runs for group in groups_of(run, self._heads))

    def prepare(self, groups: Iterable[Group]) -> None:
        """Make missing groups; a collective with the same groups on all processes. Groups of one rank are skipped.

        Evicts least recently used groups while one of their ranks belongs to more than ``capacity``.
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
        """Return a prepared group of two or more ranks that contains this one."""
        return self._groups[ranks]

    def context(self, ranks: Group) -> ContextParallel | None:
        """Return context parallelism over the ranks of a DiT that include this one; None for one rank."""
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
    group: dist.ProcessGroup = make(ranks, **how)  # a placeholder on ranks outside the group
    return group


def groups_of(run: Run, heads: int) -> list[Group]:
    """Return the groups that a run needs."""
    ranks = run.gpus
    found = [ranks]
    if run.cascade.module == Module.DIT:
        near = _near(len(ranks), heads)
        found += [*_ulysses(ranks, near), *_rings(ranks, near)]
    return found


def _near(degree: int, heads: int) -> int:
    """Return the number of ranks that exchange heads: the largest common divisor."""
    return math.gcd(degree, heads)


def _ulysses(ranks: Group, near: int) -> list[Group]:
    """Return groups of adjacent ranks."""
    return [ranks[start : start + near] for start in range(0, len(ranks), near)]


def _rings(ranks: Group, near: int) -> list[Group]:
    return [ranks[place::near] for place in range(near)]
