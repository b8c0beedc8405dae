"""Dtypes and tolerances of the kernel checks against float64."""

from typing import Any

import torch

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = ((BF16, F32), (BF16, BF16), (F16, F32), (F16, F16), (F32, F32))
"""Dtypes of activations, and of their modulation or weights."""
EPS = 1e-6
# Half a unit in the last place; and the error of float32 sums relative to the largest value.
ROUNDING = {BF16: 2**-8, F16: 2**-11, F32: 2e-6}
SUMS = 4e-6


def double(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast floating-point tensors to float64 and keep everything else."""
    return tuple(
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in values
    )


def units(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error in units of the rounding tolerance; inf if either value is not finite."""
    if not exact.numel():
        return 0.0
    allowed = ROUNDING[actual.dtype] * exact.abs() + SUMS * exact.abs().max()
    return float(((actual.double() - exact).abs() / allowed.clamp_min(1e-30)).nan_to_num(torch.inf).max())
