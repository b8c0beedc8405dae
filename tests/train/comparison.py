"""Relative errors of tensors of which some may be zero but for rounding.

A gradient that is zero in theory is rounding noise in practice, and other noise on another processor. Its error in
units of its own norm means nothing, so what rounding of the largest tensor explains of an error does not count.
"""

from collections.abc import Mapping

import torch

# Of the largest tensor's norm. A forgotten sum or a wrong divisor is off by some percent: 1e4 times as much in float32.
ROUNDINGS = 32


def relative(found: torch.Tensor, exact: torch.Tensor, largest: torch.Tensor | None = None) -> float:
    """Return the error of a tensor in units of its norm.

    Args:
        found: Tensor to judge.
        exact: Tensor to compare with, of the same shape.
        largest: Tensor whose rounding may reach ``found``: the largest of a set, or the whole of a part. What rounding
            it in ``found``'s type (float32 for coarser ones) explains does not count.
    """
    exact = exact.detach().double()
    error = float((found.detach().double() - exact).norm())
    if largest is not None:
        eps = min(torch.finfo(found.dtype).eps, torch.finfo(torch.float32).eps)
        error -= ROUNDINGS * eps * float(largest.detach().double().norm())
    # Not `max`, which takes a bound for NaN.
    return 0.0 if error <= 0 else error / max(float(exact.norm()), torch.finfo(torch.float64).tiny)


def relative_errors(found: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the error of each of a model's gradients, see :func:`relative`."""
    assert found.keys() == exact.keys()
    largest = max(exact.values(), key=lambda tensor: float(tensor.detach().double().norm()))
    return {name: relative(found[name], tensor, largest) for name, tensor in exact.items()}


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of a module's parameters, by name."""
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
