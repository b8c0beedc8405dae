"""Layout of a run on its ranks, from the configuration."""

from itertools import chain

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.parts import StepConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.models.encoders.tokenizer import LatentSizes
from reelweave.train.models.precision.narrow import narrow_layers
from reelweave.train.parallel.dit import parallelize
from reelweave.train.parallel.fp8 import check
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.layouts.fsdp import FSDP
from reelweave.train.parallel.layouts.nested_fsdp import NestedFSDP
from reelweave.train.parallel.layouts.parallel_model import DDP, ParallelModel
from reelweave.train.parallel.layouts.zero1 import ZeRO1
from reelweave.train.parallel.mesh import Mesh, Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.parallel.text_encoder import place_text_
from reelweave.train.step.losses import no_picture


def lay_out(step: StepConfig, ranks: Ranks, stored: StoredEncoders | None = None) -> ParallelModel:
    """Build the modules of a run and lay them out; a collective.

    Args:
        step: Its modules and their layout.
        ranks: Its processes.
        stored: Encoders that need not be loaded.

    Raises:
        UsageError: The degrees do not fit the model or cannot be combined, or latents are stored without what it reads.
    """
    kind = layout_of(step.layout.parallel, ranks.mesh)
    bundle = place(step, ranks, stored, trains=True)
    if bundle.dit.reads_picture and stored is not None and stored.channels is not None:
        raise no_picture()
    if ranks.mesh.pp > 1 and not (ranks.neighbours.first or ranks.neighbours.last):
        # Inner stages need neither latents nor targets.
        bundle.tokenizer = LatentSizes(bundle.tokenizer)
    return kind(bundle, step.layout, ranks)


def place(
    step: StepConfig,
    ranks: Ranks,
    stored: StoredEncoders | None = None,
    empty: bool = False,
    trains: bool = False,
) -> Bundle:
    """Build the modules of a run and divide the denoiser over its ranks, without optimizer state; a collective.

    Args:
        step: Its modules and their layout.
        ranks: Its processes.
        stored: Encoders that need not be loaded.
        empty: Leave the denoiser's weights unset, for a checkpoint that has all of them; no rank makes the whole model.
        trains: Place the text encoder as training wants it, whose ranks all encode equally often.

    Raises:
        UsageError: The degrees do not fit the model or cannot be combined.
    """
    mesh, world, layout = ranks.mesh, ranks.world, step.layout
    kind = layout_of(layout.parallel, mesh)
    if layout.fp8:
        check(layout.fp8, world.device)
    # Weights of other ranks are never allocated here, and published ones go from their files to the device.
    partly = issubclass(kind, FSDP) or mesh.pp > 1 or isinstance(step.modules.model, DiffusersConfig)
    bundle = Bundle(step.modules, meta=partly or empty, stored=stored)
    parallelize(bundle.dit, ranks, layout)
    if trains:
        place_text_(bundle.text, layout.parallel, ranks)
    if empty:
        bundle.dit.to_empty(device=world.device)
    elif partly:
        _fill_(bundle, world)
    return bundle.to(world.device)


def layout_of(parallel: ParallelConfig, mesh: Mesh) -> type[ParallelModel]:
    """Return the layout that a configuration requests.

    Raises:
        UsageError: the degrees cannot be combined with each other.
    """
    if mesh.degree(("dp_shard", *CONTEXT)) == 1:
        return DDP
    if parallel.shard == "weights":
        return NestedFSDP if parallel.schedule == "cascade" else FSDP
    if mesh.tp > 1:
        raise UsageError(
            "parallel.shard=optimizer keeps matrices whole and cannot go with parallel.tp; use weights"
        )
    return ZeRO1


@torch.no_grad()
def _fill_(bundle: Bundle, world: World) -> None:
    """Fill local parameters with the seed's initial values, layer by layer; no rank needs the whole model."""
    bundle.dit.to_empty(device=world.device)
    tensors = dict(chain(bundle.dit.named_parameters(), bundle.dit.named_buffers()))
    narrow = narrow_layers(bundle.dit)
    for name, value in bundle.initial_weights():
        if name in narrow:
            narrow[name].hold_(value)
        elif name in tensors:
            pieces.copy_(tensors[name], value)
