"""FP8 matrix products of linear layers, through torchao.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Factors are scaled to the range of e4m3 or
e5m2 right before each product, which accumulates in float32. Weights, gradients and optimizer state keep
their dtypes, and so do checkpoints.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.optimizer import Fp8Config
from reelweave.train.models.denoiser import Denoiser

MULTIPLE = 16
"""Divisor of rows and columns in FP8 products (cuBLAS), on each tensor-parallel rank."""
CAPABILITY = (8, 9)


def check(config: Fp8Config, device: torch.device) -> None:
    """Check that FP8 can run on this device.

    Raises:
        UsageError: torchao is missing, or the device has no FP8.
    """
    if find_spec("torchao") is None:
        raise UsageError("train.fp8 needs torchao: pip install 'reelweave[fp8]', or leave train.fp8 out")
    if config.emulate:
        return
    gpu = "no GPU"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= CAPABILITY:
            return
        gpu = f"one of sm_{capability[0]}{capability[1]}"
    raise UsageError(
        f"train.fp8 needs a GPU of sm_89 or newer and finds {gpu}: leave train.fp8 out, or set train.fp8.emulate=true"
        " to rehearse, slowly"
    )


def convert(model: Denoiser, config: Fp8Config, tp: int, sharded: bool) -> None:
    """Make the layers of every video token compute in FP8; names and weights stay.

    Precedes tensor parallelism, whose hooks work on torchao's layers.

    Args:
        model: model with plain linear layers.
        config: scaling of factors.
        tp: number of tensor-parallel ranks.
        sharded: True if FSDP will shard the weights.

    Raises:
        UsageError: no layer has sizes that FP8 products support.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    chosen = {id(layer) for layer in model.token_layers() if takes_fp8(layer, tp)}
    if not chosen:
        raise UsageError(
            f"train.fp8: no layer of the model's blocks has sizes that {MULTIPLE * tp} divides; leave train.fp8 out"
        )
    how = replace(
        Float8LinearConfig.from_recipe_name(config.recipe),
        emulate=config.emulate,
        # A weight's gradient sums over tokens, whose number need not be a multiple.
        pad_inner_dim=True,
        enable_fsdp_float8_all_gather=config.fsdp_all_gather and sharded,
    )
    for block in model.repeated():
        convert_to_float8_training(block, module_filter_fn=lambda layer, _: id(layer) in chosen, config=how)


def takes_fp8(layer: nn.Linear, tp: int) -> bool:
    """Return True if FP8 products support the layer's matrix, sharded by rows or columns."""
    return not any(size % (MULTIPLE * tp) for size in layer.weight.shape)


def rescale(model: Denoiser) -> None:
    """Compute the scales of all sharded weights in one collective, for gathers up to the next update."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)


def unwrap_shard(piece: torch.Tensor) -> torch.Tensor:
    """Return a rank's shard without the wrapper for FSDP's FP8 all-gather; in the same memory."""
    inner: Any = getattr(piece, "_tensor", piece) if hasattr(piece, "fsdp_pre_all_gather") else piece
    return torch.as_tensor(inner)
