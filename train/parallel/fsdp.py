"""FSDP2 with gradients that are sums over ranks."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.parallel.rank_grid import CONTEXT


def shard(model: Denoiser, ranks: Ranks, dtype: str, independent: bool = False) -> None:
    """Shard a model's weights over the ranks, one unit per block and one for the rest.

    Each block's weights are gathered for its forward and again for its backward. With bfloat16 the gathered
    weights are bfloat16, while shards, their gradients and gradient sums are float32. Layers that run in float32
    are units of their own, gathered in it. Vectors that stay float32 within other layers are whole on every rank.

    Args:
        model: denoiser.
        ranks: ranks of the run.
        dtype: dtype of activations.
        independent: True if replicas run apart, so that no backward sums over them; sequences are then always divided.
    """
    mesh = ranks.weights["dp_shard"]
    if ranks.mesh.dp_replicate > 1 and not independent:
        mesh = ranks.weights["dp_replicate", "dp_shard"]
    half = dtype == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    full_precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    units = [(module, policy) for module in model.repeated()] + [
        (module, full_precision) for module in model.full_precision()
    ]
    vectors = set(model.float32_vectors()) if half else set()
    for module, module_policy in (*units, (model, policy)):
        sharded = fully_shard(module, mesh=mesh, mp_policy=module_policy, ignored_params=vectors)
        # Losses are weighted by their share of the step, so that gradients are sums.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # Entry points of the model; `denoise` is nested in the others.
    cut = independent or ranks.mesh.degree(CONTEXT) > 1
    register_fsdp_forward_method(model, "denoise" if cut else "forward_packed")
