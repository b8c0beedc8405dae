"""Grid of a run's ranks, and process groups along its dimensions."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from loader.errors import UsageError
from train.config.parallel import ParallelConfig
from train.distributed.world import World
from train.parallel.context.context import ContextParallel
from train.parallel.neighbours import Neighbours

DATA = ("dp_replicate", "dp_shard")
"""Data dimensions: ranks along them train on different samples."""
CONTEXT = ("ring", "ulysses")
"""Context dimensions: ranks along them hold different tokens of the same samples."""
SUMMED = (*DATA, *CONTEXT)
"""Dimensions of gradient sums: ranks along them hold the same weights, for other samples or tokens."""
MODEL = ("pp", *CONTEXT, "tp")
"""Model dimensions: ranks along them train on the same samples."""


@dataclass(frozen=True)
class Mesh:
    """Sizes of a grid of ranks; the last dimension varies fastest, so that tensor-parallel ranks are adjacent.

    Attributes:
        pp: number of pipeline stages.
        dp_replicate: number of replicas of the whole state.
        dp_shard: number of ranks that shard the state.
        ring: number of context-parallel ranks that pass blocks.
        ulysses: number of context-parallel ranks that exchange heads.
        tp: number of ranks that shard each matrix.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    ring: int = 1
    ulysses: int = 1
    tp: int = 1

    @classmethod
    def of(cls, config: ParallelConfig, world_size: int) -> "Mesh":
        """Return the grid of a configuration on a number of ranks.

        Raises:
            UsageError: the degrees do not multiply to them.
        """
        degrees = {field.name: getattr(config, field.name) for field in fields(cls)}
        fixed = math.prod(degree for degree in degrees.values() if degree != "rest")
        told = " x ".join(f"parallel.{name}={degree}" for name, degree in degrees.items() if degree != 1)
        rest, over = divmod(world_size, fixed)
        if over or (rest > 1 and "rest" not in degrees.values()):
            whole = "divide" if "rest" in degrees.values() else "multiply to"
            raise UsageError(
                f"{told or 'parallel: one rank'} must {whole} the {world_size} ranks of this run, and make {fixed};"
                " change a degree, or start another number of ranks"
            )
        return cls(**{name: rest if degree == "rest" else degree for name, degree in degrees.items()})

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
            left, place = rank, {}
            for name in reversed(names):
                left, place[name] = divmod(left, getattr(self, name))
            others = tuple(place[name] for name in names if name not in dimensions)
            groups.setdefault(others, []).append(rank)
        return list(groups.values())


class Ranks:
    """The processes of a run in their grid, seen from one of them.

    A process group is made when it is first asked for, which is a collective of all processes. Dimensions that divide
    the ranks alike share one.

    Args:
        mesh: the grid.
        world: all processes, as many as the grid has places.

    Attributes:
        mesh: the grid.
        world: all processes.
    """

    def __init__(self, mesh: Mesh, world: World) -> None:
        self.mesh = mesh
        self.world = world
        self._along: dict[frozenset[str], World] = {}

    @classmethod
    def of(cls, config: ParallelConfig, world: World) -> "Ranks":
        """Lay all processes out in the grid of a configuration.

        Raises:
            UsageError: The degrees do not multiply to the number of ranks.
        """
        return cls(Mesh.of(config, world.size), world)

    def along(self, *dimensions: str) -> World:
        """Return the ranks that differ from this one in these dimensions alone."""
        divided = frozenset(name for name in dimensions if getattr(self.mesh, name) > 1)
        if divided not in self._along:
            self._along[divided] = self._group(dimensions)
        return self._along[divided]

    @cached_property
    def weights(self) -> DeviceMesh:
        """Device mesh of the weights: pp, dp_replicate, dp_shard (including context-parallel ranks), tp."""
        mesh = self.mesh
        sizes = (mesh.pp, mesh.dp_replicate, mesh.degree(("dp_shard", *CONTEXT)), mesh.tp)
        names = ("pp", "dp_replicate", "dp_shard", "tp")
        return init_device_mesh(self.world.device.type, sizes, mesh_dim_names=names)

    @cached_property
    def context(self) -> ContextParallel:
        """Ranks that share this rank's sequences."""
        make: Any = dist.new_subgroups_by_enumeration
        return ContextParallel(
            *(make(self.mesh.partition(names))[0] for names in (("ring",), ("ulysses",), CONTEXT))
        )

    @cached_property
    def neighbours(self) -> Neighbours:
        """Adjacent stages in this rank's pipeline."""
        make: Any = dist.new_subgroups_by_enumeration
        tokens, gradients = (make(self.mesh.partition(("pp",)))[0] for _ in range(2))
        return Neighbours(tokens, gradients)

    def _group(self, dimensions: Sequence[str]) -> World:
        groups = self.mesh.partition(dimensions)
        own = next(ranks for ranks in groups if self.world.rank in ranks)
        if len(own) == self.world.size:
            return self.world
        group: Any = dist.new_subgroups_by_enumeration(groups)[0] if len(own) > 1 else None
        return World(own.index(self.world.rank), len(own), self.world.device, group)
