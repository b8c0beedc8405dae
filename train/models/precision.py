"""Which numbers are taken in float32 whatever the type of the activations."""

import torch


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
