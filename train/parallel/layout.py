"""From a configuration to a run laid out on its ranks."""

from itertools import chain

import torch

from loader.errors import UsageError
from train.config.run import TrainConfig
from train.distributed.world import World
from train.models.bundle import Bundle
from train.models.encoders.stored import Stored
from train.models.encoders.tokenizer import LatentSizes
from train.parallel.dit import parallelize
from train.parallel.fp8 import check
from train.parallel.layouts import pieces
from train.parallel.layouts.fully_sharded import FullySharded
from train.parallel.layouts.optimizer_sharded import OptimizerSharded
from train.parallel.layouts.replicated import Replicated
from train.parallel.mesh import CONTEXT, Mesh, Ranks

Layout = Replicated
"""What the trainer knows of a layout."""


def lay_out(config: TrainConfig, world: World, stored: Stored | None = None) -> Layout:
    """Makes a run's modules and lays them out; a collective.

    Args:
        config: of the run.
        world: its ranks.
        stored: encoders that need not be loaded.

    Raises:
        UsageError: the degrees do not fit the ranks or the model, or cannot be combined.
    """
    mesh = Mesh.of(config.parallel, world.size)
    kind = layout_of(config, mesh)
    if config.fp8:
        check(config.fp8, world.device)
    # What this rank has no use for is never given memory.
    partly = kind is FullySharded or mesh.pp > 1
    bundle, ranks = Bundle(config, meta=partly, stored=stored), Ranks(mesh, world)
    parallelize(bundle.dit, ranks, config)
    if mesh.pp > 1 and not (ranks.neighbours.first or ranks.neighbours.last):
        # Only the first stage takes latents, and only the last one is asked about them.
        bundle.tokenizer = LatentSizes(bundle.tokenizer)
    if partly:
        _fill_(bundle, world)
    bundle.to(world.device)
    return kind(bundle, config, ranks)


def layout_of(config: TrainConfig, mesh: Mesh) -> type[Layout]:
    """The layout that a configuration asks for.

    Raises:
        UsageError: the degrees cannot be combined, or not with the rest of the configuration.
    """
    if mesh.pp > 1 and config.recalibrate:
        raise UsageError(
            "train.recalibrate times one microbatch after the other, and with parallel.pp they overlap: leave one out"
        )
    if mesh.degree(("dp_shard", *CONTEXT)) == 1:
        return Replicated
    if config.parallel.shard == "weights":
        return FullySharded
    if mesh.tp > 1:
        raise UsageError(
            "parallel.shard=optimizer keeps matrices whole and cannot go with parallel.tp; use weights"
        )
    return OptimizerSharded


@torch.no_grad()
def _fill_(bundle: Bundle, world: World) -> None:
    """Gives what is here of a denoiser the values of the run's seed, layer by layer: no rank need hold all of it."""
    bundle.dit.to_empty(device=world.device)
    tensors = dict(chain(bundle.dit.named_parameters(), bundle.dit.named_buffers()))
    for name, value in bundle.initial_weights():
        if name in tensors:
            pieces.copy_(tensors[name], value)
