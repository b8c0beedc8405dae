"""Linear layers whose matrix products run in FP8, through torchao.

Micikevicius et al., "FP8 Formats for Deep Learning", 2022: factors are scaled to the range of e4m3 or e5m2 just before
each product, which adds up in float32. Weights, gradients and optimizer state stay what they are, so checkpoints do,
too.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from loader.errors import UsageError
from train.config.optimizer import Fp8Config
from train.models.denoiser import Denoiser

MULTIPLE = 16
"""Rows and columns of a matrix that FP8 products take (cuBLAS), on each tensor-parallel rank."""
CAPABILITY = (8, 9)


def check(config: Fp8Config, device: torch.device) -> None:
    """Refuses what cannot run here.

    Raises:
        UsageError: torchao is missing, or the device has no FP8.
    """
    if find_spec("torchao") is None:
        raise UsageError("train.fp8 needs torchao: pip install 'reelweave[fp8]', or leave train.fp8 out")
    if config.emulate:
        return
    found = "no GPU"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= CAPABILITY:
            return
        found = f"one of sm_{capability[0]}{capability[1]}"
    raise UsageError(
        f"train.fp8 needs a GPU of sm_89 or newer and finds {found}: leave train.fp8 out, or set train.fp8.emulate=true"
        " to rehearse, slowly"
    )


def convert(model: Denoiser, config: Fp8Config, tp: int, sharded: bool) -> None:
    """Makes the layers that every video token goes through compute in FP8; names and weights stay.

    Comes before tensor parallelism, which adds hooks to the layers that it divides, and which torchao's layers take.

    Args:
        model: with plain linear layers.
        config: how factors are scaled.
        tp: ranks that will divide each matrix.
        sharded: whether FSDP will divide the weights.

    Raises:
        UsageError: no layer has sizes that FP8 products take.
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
        # The gradient of a weight sums over tokens, of which a microbatch has any number.
        pad_inner_dim=True,
        enable_fsdp_float8_all_gather=config.fsdp_all_gather and sharded,
    )
    for block in model.repeated():
        convert_to_float8_training(block, module_filter_fn=lambda layer, _: id(layer) in chosen, config=how)


def takes_fp8(layer: nn.Linear, tp: int) -> bool:
    """Whether FP8 products take the matrix of a layer, divided by rows or columns."""
    return not any(size % (MULTIPLE * tp) for size in layer.weight.shape)


def rescale(model: Denoiser) -> None:
    """Takes the scales of all divided weights in one collective, for the gathers up to the next update."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)


def unwrapped(piece: torch.Tensor) -> torch.Tensor:
    """A rank's piece of a weight without what makes FSDP gather it in FP8; in the same memory."""
    inner: Any = getattr(piece, "_tensor", piece) if hasattr(piece, "fsdp_pre_all_gather") else piece
    return torch.as_tensor(inner)
