"""The layout of a DiT: which of its layers are divided how, and in which order."""

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from loader.errors import UsageError
from train.config import TrainConfig
from train.models.dit import DiT
from train.parallel.activations import checkpoint_block, compile_block
from train.parallel.fsdp import shard
from train.parallel.mesh import CONTEXT, Ranks
from train.parallel.tensor import divide_inputs, divide_outputs, share_inputs


def parallelize(model: DiT, ranks: Ranks, config: TrainConfig) -> None:
    """Lays a model out: tensor parallel, then activation checkpointing, then compilation, then FSDP.

    Raises:
        UsageError: the model does not divide.
    """
    parallel, mesh = config.parallel, ranks.mesh
    inner = int(model.config.hidden * model.config.mlp_ratio)
    if model.config.heads % mesh.tp or inner % mesh.tp:
        raise UsageError(
            f"parallel.tp={mesh.tp} must divide model.heads={model.config.heads} and the {inner} values inside the MLP"
        )
    if mesh.tp > 1:
        for block in model.blocks:
            _divide(block, ranks.weights["tp"])
    for block in model.blocks:
        checkpoint_block(block, parallel.activation_checkpointing)
        if parallel.compile:
            compile_block(block, parallel.memory_budget)
    if parallel.shard == "weights" and mesh.degree(("dp_shard", *CONTEXT)) > 1:
        shard(model, model.blocks, ranks, config.dtype)


def summed_over_tensor_ranks(name: str) -> bool:
    """Whether the gradient of a weight is a sum over tensor-parallel ranks: norms see the heads of one rank alone."""
    return name.endswith(("query_norm.weight", "key_norm.weight"))


def _divide(block: Any, mesh: DeviceMesh) -> None:
    """Divides attention by heads and the MLP by its inner width (Shoeybi et al., "Megatron-LM", 2020, section 3).

    Queries and keys are normalised per head, which needs no communication. The vectors of the modulation are few: each
    rank makes some of them, and all get all.
    """
    for attention in (block.attend, block.cross_attend):
        share_inputs(attention, mesh)
        for layer in (attention.query, attention.key, attention.value):
            divide_outputs(layer, mesh)
        divide_inputs(attention.out, mesh)
        attention.heads //= mesh.size()
    divide_outputs(block.mlp[0], mesh)
    divide_inputs(block.mlp[2], mesh)
    divide_outputs(block.modulation, mesh, gather=True)
