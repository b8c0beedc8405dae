"""Grids of ranks, and process groups along their dimensions."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import Generic, TypeVar

from reelweave.train.distributed.groups import Groups, around, to_all
from reelweave.train.distributed.world import World
from reelweave.train.parallel.context.context import ContextParallel

CONTEXT = ("ring", "ulysses")
"""Context dimensions: ranks along them hold different tokens of the same samples."""


@dataclass(frozen=True)
class RankGrid:
    """Base of grids: a dataclass of degrees, of which the last varies fastest from rank to rank."""

    @property
    def size(self) -> int:
        """Number of ranks in the grid."""
        return math.prod(astuple(self))

    def degree(self, dimensions: Sequence[str]) -> int:
        """Return the number of ranks along some dimensions."""
        return math.prod(getattr(self, name) for name in dimensions)

    def partition(self, dimensions: Sequence[str]) -> list[list[int]]:
        """Partition all ranks into groups along some dimensions, in grid order."""
        names = [field.name for field in fields(self)]
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            remaining, coordinates = rank, {}
            for name in reversed(names):
                remaining, coordinates[name] = divmod(remaining, getattr(self, name))
            key = tuple(coordinates[name] for name in names if name not in dimensions)
            groups.setdefault(key, []).append(rank)
        return list(groups.values())


Grid = TypeVar("Grid", bound=RankGrid)


class GridRanks(Generic[Grid]):
    """Processes of a run in their grid, seen from one of them.

    A process group is made when it is first asked for, which is a collective of all processes. Dimensions that divide
    the ranks alike share one.

    Args:
        mesh: the grid.
        world: all processes, as many as the grid has places.

    Attributes:
        mesh: the grid.
        world: all processes.
        groups: process groups made so far.
    """

    def __init__(self, mesh: Grid, world: World) -> None:
        self.mesh = mesh
        self.world = world
        self.groups = Groups(world.device, world.timeout)
        self._along: dict[frozenset[str], World] = {}

    def along(self, *dimensions: str) -> World:
        """Return the ranks that differ from this one in these dimensions alone."""
        divided = frozenset(name for name in dimensions if getattr(self.mesh, name) > 1)
        if divided not in self._along:
            self._along[divided] = self._group(dimensions)
        return self._along[divided]

    @cached_property
    def context(self) -> ContextParallel:
        """Ranks that share this rank's sequences."""
        return self.context_with()

    def context_with(self, *dimensions: str) -> ContextParallel:
        """Return the ranks of `context` along further dimensions, as a longer ring; a collective of all processes."""
        rings = (*dimensions, "ring")
        divide, partition = self.groups.divide, self.mesh.partition
        ring, ulysses = divide(partition(rings), around), divide(partition(("ulysses",)), to_all)
        # Where one of them has a rank alone, the other one is all ranks: a communicator less.
        both = self.mesh.degree(rings) > 1 and self.mesh.degree(("ulysses",)) > 1
        return ContextParallel(ring, ulysses, divide(partition((*rings, "ulysses"))) if both else None)

    def _group(self, dimensions: Sequence[str]) -> World:
        return self._world_of(self.mesh.partition(dimensions))

    def _world_of(self, groups: list[list[int]]) -> World:
        """Return this rank's of groups that partition all ranks; a collective of all processes."""
        group_ranks = next(ranks for ranks in groups if self.world.rank in ranks)
        if len(group_ranks) == self.world.size:
            return self.world
        world = replace(
            self.world, rank=group_ranks.index(self.world.rank), size=len(group_ranks), store=None
        )
        return replace(world, group=self.groups.divide(groups)) if world.size > 1 else world
