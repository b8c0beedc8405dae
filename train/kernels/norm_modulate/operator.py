"""Fused adaptive layer norm of a DiT, ``norm(x) * (1 + scale) + shift``, with its gradient.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2; fused as in AdaptiveLoad,
section 3.3. Models call `layer_norm_modulate`. It saves x and two numbers per token for backward, where the
unfused operations save x and the normed tokens.
"""

from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from reelweave.train.kernels.norm_modulate import reference
from reelweave.train.kernels.providers import call, checked_by_kernels, register
from reelweave.train.kernels.shared.norm import Numerics, empty_like, empty_statistics
from reelweave.train.kernels.shared.rows import check
from reelweave.train.kernels.shared.traffic import Size


def layer_norm_modulate(
    x_BLD: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    rms: bool = False,
    weight_D: torch.Tensor | None = None,
    bias_D: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor | None = None,
    numerics: Numerics = "fp32",
) -> torch.Tensor:
    """Return ``norm(x) * (1 + scale) + shift``; [B, L, D] in x's dtype.

    Args:
        x_BLD: tokens.
        scale: one row per sample [B, D], per frame [B, F, D] (its L / F tokens adjacent; F = L: per token), or
            per group [n, D]. In x's dtype or the accumulator's; any strides.
        shift: shift, in the layout of ``scale``.
        eps: added to the variance.
        rms: use an RMS norm, without a mean.
        weight_D: weight of the norm.
        bias_D: bias of the norm.
        cu_seqlens: offsets [n + 1] of the groups in a packed row of tokens [1, L, D], ending with L; groups may
            be empty.
        numerics: ``fp32`` rounds once, at the end; ``eager`` wherever PyTorch's unfused operations do.

    Raises:
        UsageError: shapes or dtypes do not match.
    """
    if not checked_by_kernels(x_BLD, numerics):
        check(x_BLD, None, None, scale, shift, weight_D, bias_D, cu_seqlens, numerics)
    tensors, flags = (x_BLD, scale, shift, weight_D, bias_D, cu_seqlens), (eps, rms, numerics)
    y_BLD, *_ = call(norm_modulate, _Function, reference.forward, x_BLD, tensors, flags, cu_seqlens)
    return cast(torch.Tensor, y_BLD)


def bytes_moved(size: Size, backward: bool = False) -> int:
    """Return the bytes of one pass over memory: 4 per element in bfloat16, 6 in the backward."""
    if backward:
        return 3 * size.activation + size.statistics + 3 * size.modulation
    return 2 * size.activation + size.statistics + 2 * size.modulation


def saved_bytes(size: Size) -> int:
    """Return the bytes saved for backward: x, often saved anyway as the residual stream, the statistics and scale."""
    return size.activation + size.statistics + size.modulation


_forward = register("norm_modulate", reference.forward, 0)
_backward = register("norm_modulate_backward", reference.backward, 0)


@torch.library.custom_op("reelweave::norm_modulate", mutates_args=())
def norm_modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered operator; signature of the reference's `forward`."""
    y, mean, rstd = _forward(x, scale, shift, weight, bias, cu_seqlens, eps, rms, numerics)
    return y, mean, rstd


@norm_modulate.register_fake
def _(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), *empty_statistics(x, rms=rest[-2])


@torch.library.custom_op("reelweave::norm_modulate_backward", mutates_args=())
def norm_modulate_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered gradient; signature of the reference's `backward`."""
    tokens = (dy, x, mean, rstd)
    grads = _backward(*tokens, scale, weight, bias, cu_seqlens, eps, rms, numerics)
    dx, dscale, dshift, dweight, dbias = grads
    return dx, dscale, dshift, dweight, dbias


@norm_modulate_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    _, x, _, _, scale, weight, bias, *_ = arguments
    rows = (scale.new_empty(scale.shape) for _ in range(2))
    return x.new_empty(x.shape), *rows, empty_like(weight, x), empty_like(bias, x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    # Otherwise each backward would allocate zeros for the gradients of mean and rstd.
    ctx.set_materialize_grads(False)
    _keep(ctx, inputs[:6], inputs[6:], output)


def _keep(ctx: Any, tensors: tuple[Any, ...], flags: Any, output: tuple[torch.Tensor, ...]) -> None:
    x, scale, _, weight, bias, cu_seqlens = tensors
    _, mean, rstd = output
    ctx.flags = flags
    ctx.save_for_backward(x, mean, rstd, scale, weight, bias, cu_seqlens)


def _gradients(ctx: Any, dy: torch.Tensor | None, backward: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of all tensors."""
    x, _, _, _, weight, bias, _ = saved = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy
    dx, dscale, dshift, dweight, dbias = backward(dy, *saved, *ctx.flags)
    return dx, dscale, dshift, None if weight is None else dweight, None if bias is None else dbias, None


norm_modulate.register_autograd(
    lambda ctx, dy, _mean, _rstd: (*_gradients(ctx, dy, norm_modulate_backward), None, None, None),
    setup_context=_setup,
)


class _Function(torch.autograd.Function):
    """Operator without dispatcher and with y as only output, which both save host time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        tensors, flags = inputs[:-1], inputs[-1]
        output = _forward(*tensors, *flags)
        _keep(ctx, tensors, flags, output)
        return output[:1]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = _once_gradients if torch.is_grad_enabled() else _gradients
        return *gradients(ctx, dy, _backward), None


_once_gradients = once_differentiable(_gradients)
