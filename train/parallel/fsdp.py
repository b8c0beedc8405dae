"""Weights in pieces, gathered block by block: torch's FSDP2, with gradients that add up."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from train.models.denoiser import Denoiser
from train.parallel.mesh import CONTEXT, Ranks


def shard(model: Denoiser, ranks: Ranks, dtype: str) -> None:
    """Divides a model's weights over the ranks, block by block; the rest of it is one more block.

    Each block's weights are gathered for its forward and again for its backward. With bfloat16 they are gathered in
    bfloat16, while the pieces, their gradients and the sums of gradients are float32.
    """
    mesh = ranks.weights["dp_shard"]
    if ranks.mesh.dp_replicate > 1:
        mesh = ranks.weights["dp_replicate", "dp_shard"]
    half = dtype == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    for module in (*model.repeated(), model):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
        # Microbatches are weighed by their share of the step: their gradients add up.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # Whatever enters the model, each once: `denoise` is inside the others.
    cut = ranks.mesh.degree(CONTEXT) > 1
    register_fsdp_forward_method(model, "denoise" if cut else "forward_packed")
