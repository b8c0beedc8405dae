"""Which numbers are taken in float32 whatever the type of the activations."""

import torch

from train.kernels.reference.norm import Numerics


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def numerics_on(x: torch.Tensor) -> Numerics:
    """The mode of fused operators that is what the chain of operations does under autocast.

    On a GPU autocast norms in float32; on a CPU it does not, and there the chain's bits can be kept.
    """
    return "fp32" if x.is_cuda else "eager"
