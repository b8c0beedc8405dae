"""Computations that stay in float32 at any dtype of activations."""

import torch

from reelweave.train.kernels.shared.norm import Numerics


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """Cast ``x`` to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def numerics_on(x: torch.Tensor) -> Numerics:
    """Return the mode of fused operators that matches the unfused operations under autocast.

    Autocast runs norms in float32 on a GPU, but not on a CPU, where results stay equal to the bit.
    """
    return "fp32" if x.is_cuda else "eager"
