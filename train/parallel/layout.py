"""From a configuration to a run laid out on its ranks."""

from loader.errors import UsageError
from train.config import TrainConfig
from train.models.bundle import Bundle
from train.parallel.dit import parallelize
from train.parallel.fully_sharded import FullySharded
from train.parallel.mesh import CONTEXT, Mesh, Ranks
from train.parallel.optimizer_sharded import OptimizerSharded
from train.parallel.replicated import Replicated
from train.parallel.world import World

Layout = Replicated
"""What the trainer knows of a layout."""


def lay_out(config: TrainConfig, world: World) -> Layout:
    """Makes a run's modules and lays them out; a collective.

    Raises:
        UsageError: the degrees do not fit the ranks or the model, or cannot be combined.
    """
    mesh = Mesh.of(config.parallel, world.size)
    if mesh.pp > 1 or mesh.degree(CONTEXT) > 1:
        raise UsageError(
            "the trainer does not use parallel.ring, parallel.ulysses or parallel.pp yet; leave them at 1"
        )
    divides = mesh.degree(("dp_shard", *CONTEXT)) > 1
    if divides and config.parallel.shard == "optimizer" and mesh.tp > 1:
        raise UsageError(
            "parallel.shard=optimizer keeps matrices whole and cannot go with parallel.tp; use weights"
        )
    bundle, ranks = Bundle(config), Ranks(mesh, world)
    parallelize(bundle.dit, ranks, config)
    bundle.to(world.device)
    if not divides:
        return Replicated(bundle, config, ranks)
    kind = FullySharded if config.parallel.shard == "weights" else OptimizerSharded
    return kind(bundle, config, ranks)
