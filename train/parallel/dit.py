"""Parallelization of a denoiser: sharding of its layers, and the order of all transformations."""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import LayoutConfig
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT, MultiHeadAttention
from reelweave.train.models.mmdit import TextSource
from reelweave.train.models.precision.narrow import narrow_
from reelweave.train.parallel.activations import checkpoint_block, compile_block, offload_block
from reelweave.train.parallel.context.token_shard import check_heads, cuttable
from reelweave.train.parallel.fp8 import convert
from reelweave.train.parallel.fsdp import shard
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.pipeline.stage import check_stages, make_stage
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.parallel.tensor import divide_inputs, divide_outputs, share_inputs


def parallelize(model: Denoiser, ranks: Ranks, config: LayoutConfig) -> None:
    """Apply pipeline, narrow weights, FP8, tensor parallelism, checkpointing, compilation and FSDP, in this order.

    Raises:
        UsageError: the model does not divide evenly.
    """
    parallel, mesh = config.parallel, ranks.mesh
    if mesh.degree(CONTEXT) > 1:
        check_heads(cuttable(model), mesh.ulysses, mesh.tp)
    if mesh.pp > 1:
        make_stage(check_stages(model, mesh.pp), ranks.neighbours)
    if config.lora and config.lora.base_dtype:
        narrow_(model.frozen_layers(), config.lora.base_dtype)
    sharded = parallel.shard == "weights" and mesh.degree(("dp_shard", *CONTEXT)) > 1
    if config.fp8:
        convert(model, config.fp8, mesh.tp, sharded)
    if mesh.tp > 1:
        _check(model, mesh.tp)
        for block in model.repeated():
            _divide(block, ranks.weights["tp"])
    rowwise = config.fp8 is not None and config.fp8.recipe == "rowwise"
    draws = config.lora is not None and config.lora.dropout > 0
    for block in model.repeated():
        checkpoint_block(block, parallel.activation_checkpointing, draws)
        if parallel.compile:
            compile_block(block, parallel.memory_budget, as_eager=rowwise)
        if parallel.activation_checkpointing == "offload":
            offload_block(block)
    if sharded:
        shard(model, ranks, config.dtype, independent=parallel.schedule == "cascade")


def summed_over_tensor_ranks(name: str) -> bool:
    """Return True if a weight's gradient is a sum over tensor-parallel ranks: norms see local heads only."""
    return name.endswith(("query_norm.weight", "key_norm.weight"))


def _check(model: Denoiser, ranks: int) -> None:
    if not isinstance(model, DiT):
        raise UsageError(
            f"parallel.tp={ranks} cannot divide this model: leave it at 1, and divide with dp_shard"
        )
    heads, inner = model.config.heads, model.config.inner
    if heads % ranks or inner % ranks:
        raise UsageError(
            f"parallel.tp={ranks} must divide model.heads={heads} and the {inner} values inside the MLP"
        )


def _divide(block: nn.Module, mesh: DeviceMesh) -> None:
    """Shard attention by heads and MLPs by inner width (Shoeybi et al., "Megatron-LM", 2020, section 3).

    Queries and keys are normalized per head, which needs no communication. Modulation vectors are few: each
    rank computes some and all gather them.
    """
    for module in list(block.modules()):
        if isinstance(module, MultiHeadAttention):
            share_inputs(module, mesh)
            divide_outputs(module.query, mesh)
            divide_inputs(module.out, mesh)
        if isinstance(module, MultiHeadAttention | TextSource):
            divide_outputs(module.key, mesh)
            divide_outputs(module.value, mesh)
            module.heads //= mesh.size()
        for name, child in module.named_children():
            layers: list[Any] = list(child) if isinstance(child, nn.Sequential) else [child]
            if name == "mlp":
                divide_outputs(layers[0], mesh)
                divide_inputs(layers[-1], mesh)
            if name == "modulation":
                divide_outputs(layers[-1], mesh, gather=True)
