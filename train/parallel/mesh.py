"""Grid of a training run's ranks."""

import math
import os
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch.distributed.device_mesh import DeviceMesh

from reelweave.loader.errors import UsageError
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.groups import backward, onward
from reelweave.train.distributed.world import World
from reelweave.train.parallel.neighbours import Neighbours
from reelweave.train.parallel.rank_grid import CONTEXT, GridRanks, RankGrid

DATA = ("dp_replicate", "dp_shard")
"""Data dimensions: ranks along them train on different samples."""
SUMMED = (*DATA, *CONTEXT)
"""Dimensions of gradient sums: ranks along them hold the same weights, for other samples or tokens."""
MODEL = ("pp", *CONTEXT, "tp")
"""Model dimensions: ranks along them train on the same samples."""


@dataclass(frozen=True)
class Mesh(RankGrid):
    """Degrees of a training run; the last dimension varies fastest, so that tensor-parallel ranks are adjacent.

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
        layout = " x ".join(f"parallel.{name}={degree}" for name, degree in degrees.items() if degree != 1)
        rest, over = divmod(world_size, fixed)
        if over or (rest > 1 and "rest" not in degrees.values()):
            verb = "divide" if "rest" in degrees.values() else "multiply to"
            raise UsageError(
                f"{layout or 'parallel: one rank'} must {verb} the {world_size} ranks of this run, and make {fixed};"
                " change a degree, or start another number of ranks"
            )
        return cls(**{name: rest if degree == "rest" else degree for name, degree in degrees.items()})


class Ranks(GridRanks[Mesh]):
    """Processes of a training run in their grid, seen from one of them.

    Attributes:
        node_size: number of ranks of a node; None: as many as the launcher has started on this one.
    """

    node_size: int | None = None

    @classmethod
    def of(cls, config: ParallelConfig, world: World) -> "Ranks":
        """Lay all processes out in the grid of a configuration.

        Raises:
            UsageError: The degrees do not multiply to the number of ranks.
        """
        return cls(Mesh.of(config, world.size), world)

    @cached_property
    def weights(self) -> DeviceMesh:
        """Device mesh of the weights: pp, dp_replicate, dp_shard (including context-parallel ranks), tp."""
        dimensions = {
            "pp": ("pp",),
            "dp_replicate": ("dp_replicate",),
            "dp_shard": ("dp_shard", *CONTEXT),
            "tp": ("tp",),
        }
        sizes = [self.mesh.degree(names) for names in dimensions.values()]
        return DeviceMesh.from_group(
            [self.groups.divide(self.mesh.partition(names)) for names in dimensions.values()],
            self.world.device.type,
            mesh=torch.arange(self.world.size).reshape(sizes),
            mesh_dim_names=tuple(dimensions),
        )

    @cached_property
    def node(self) -> World:
        """Ranks on this rank's node, of its pipeline stage; of all nodes where these have unequal numbers of ranks."""
        world = self.world
        size = self.node_size or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        if world.largest(size) != -world.largest(-size):
            size = world.size
        dimensions = [field.name for field in fields(self.mesh) if field.name != "pp"]
        groups: dict[tuple[int, int], list[int]] = {}
        for stage, members in enumerate(self.mesh.partition(dimensions)):
            for rank in members:
                groups.setdefault((stage, rank // size), []).append(rank)
        return self._world_of(list(groups.values()))

    @cached_property
    def neighbours(self) -> Neighbours:
        """Adjacent stages in this rank's pipeline."""
        stages = self.mesh.partition(("pp",))
        return Neighbours(self.groups.divide(stages, onward), self.groups.divide(stages, backward))
