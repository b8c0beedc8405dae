"""Memory of a frozen text encoder: whole, divided over the ranks of a node, or on the host."""

from typing import Literal

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.encoders.layers import layers_of
from reelweave.train.models.encoders.text import TextEncoder, TransformersTextEncoder
from reelweave.train.parallel.mesh import Mesh, Ranks
from reelweave.train.parallel.rank_grid import CONTEXT

EncoderPlacement = Literal["whole", "shard", "offload"]


def placement(parallel: ParallelConfig, mesh: Mesh) -> EncoderPlacement:
    """Return where a run keeps its text encoder.

    Args:
        parallel: layout of the run.
        mesh: degrees of the run.
    """
    if parallel.text_encoder != "auto":
        return parallel.text_encoder
    sharded = parallel.shard == "weights" and mesh.degree(("dp_shard", *CONTEXT)) > 1
    return "shard" if sharded and parallel.schedule == "static" else "whole"


def place_text_(text: TextEncoder, parallel: ParallelConfig, ranks: Ranks) -> None:
    """Divide a frozen text encoder over ranks or keep it on the host, as configured; a collective of all ranks.

    Args:
        text: text encoder; one without frozen weights stays as it is.
        parallel: layout of the run.
        ranks: processes of the run.
    """
    if not isinstance(text, TransformersTextEncoder):
        return
    chosen = placement(parallel, ranks.mesh)
    if chosen == "offload":
        text.offload_(ranks.world.device)
    elif chosen == "shard" and ranks.node.size > 1:
        for model in text.frozen:
            _shard(model, ranks.node)
        text.lockstep = True


def _shard(model: nn.Module, ranks: World) -> None:
    """Shard an encoder, one unit per layer and one for the rest; weights are gathered for a forward and no longer."""
    group = ranks.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, ranks.device.type)
    for module in (*layers_of(model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
