"""What kernels are checked with: types, and how far they may lie from float64."""

from typing import Any

import torch

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = ((BF16, F32), (BF16, BF16), (F16, F32), (F16, F16), (F32, F32))
"""Of activations, and of what modulates or weighs them."""
EPS = 1e-6
# Half a unit in the last place; and sums in float32, in units of the largest value.
ROUNDING = {BF16: 2**-8, F16: 2**-11, F32: 2e-6}
SUMS = 4e-6


def double(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors of numbers in float64, all else as it is."""
    return tuple(
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in values
    )


def units(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, in units of what rounding explains; inf where one of the two is no number."""
    if not exact.numel():
        return 0.0
    allowed = ROUNDING[found.dtype] * exact.abs() + SUMS * exact.abs().max()
    return float(((found.double() - exact).abs() / allowed.clamp_min(1e-30)).nan_to_num(torch.inf).max())
