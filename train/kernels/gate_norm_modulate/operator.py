"""Fused gated residual and adaptive layer norm, between two branches of a DiT block.

``h = residual + gate * y``, rounded to the dtype of activations; ``out = norm(h) * (1 + scale) + shift`` of the
rounded h, so that the residual stream and the norm's input never differ. Models call
`gate_residual_norm_modulate`; its backward computes all five gradients in one pass over dh, dout, h and y.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from reelweave.train.kernels.gate_norm_modulate import reference
from reelweave.train.kernels.providers import call, checked_by_kernels, register
from reelweave.train.kernels.shared.norm import Numerics, empty_like, empty_statistics
from reelweave.train.kernels.shared.rows import check
from reelweave.train.kernels.shared.traffic import Size


def gate_residual_norm_modulate(
    residual_BLD: torch.Tensor,
    y_BLD: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    rms: bool = False,
    weight_D: torch.Tensor | None = None,
    bias_D: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor | None = None,
    numerics: Numerics = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``h = residual + gate * y`` and ``norm(h) * (1 + scale) + shift``, [B, L, D] in the residual's dtype.

    Args:
        residual_BLD: tokens.
        y_BLD: output of a branch, of the same shape and dtype.
        gate: gate, in the layout of ``scale``.
        scale: scale and the remaining arguments, as in
            `reelweave.train.kernels.norm_modulate.operator.layer_norm_modulate`.
        shift: shift, in the layout of ``scale``.
        eps: added to the variance.
        rms: use an RMS norm.
        weight_D: weight of the norm.
        bias_D: bias of the norm.
        cu_seqlens: offsets of the groups of a pack.
        numerics: rounding mode.

    Raises:
        UsageError: shapes or dtypes do not match.
    """
    if not checked_by_kernels(y_BLD, numerics):
        check(residual_BLD, y_BLD, gate, scale, shift, weight_D, bias_D, cu_seqlens, numerics)
    tensors = (residual_BLD, y_BLD, gate, scale, shift, weight_D, bias_D, cu_seqlens)
    how = (reference.forward, y_BLD, tensors, (eps, rms, numerics), cu_seqlens)
    h_BLD, out_BLD, *_ = call(gate_norm_modulate, _Function, *how)
    return h_BLD, out_BLD


def bytes_moved(size: Size, backward: bool = False) -> int:
    """Return the bytes of one pass over memory: 8 per element in bfloat16, 12 in the backward."""
    if backward:
        return 6 * size.activation + size.statistics + 5 * size.modulation
    return 4 * size.activation + size.statistics + 3 * size.modulation


def saved_bytes(size: Size) -> int:
    """Return the bytes saved for backward: h and y, the statistics, gate and scale."""
    return 2 * size.activation + size.statistics + 2 * size.modulation


_forward = register("gate_norm_modulate", reference.forward, 1)
_backward = register("gate_norm_modulate_backward", reference.backward, 3)


@torch.library.custom_op("reelweave::gate_norm_modulate", mutates_args=())
def gate_norm_modulate(
    residual: torch.Tensor,
    y: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered operator; signature of the reference's `forward`."""
    arguments = (residual, y, gate, scale, shift, weight, bias, cu_seqlens, eps, rms, numerics)
    h, out, mean, rstd = _forward(*arguments)
    return h, out, mean, rstd


@gate_norm_modulate.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    y, rms = arguments[1], arguments[-2]
    return y.new_empty(y.shape), y.new_empty(y.shape), *empty_statistics(y, rms)


@torch.library.custom_op("reelweave::gate_norm_modulate_backward", mutates_args=())
def gate_norm_modulate_backward(
    dh: torch.Tensor | None,
    dout: torch.Tensor,
    h: torch.Tensor,
    y: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered gradient; signature of the reference's `backward`."""
    tokens = (dh, dout, h, y, mean, rstd)
    grads = _backward(*tokens, gate, scale, weight, bias, cu_seqlens, eps, rms, numerics)
    dresidual, dy, dgate, dscale, dshift, dweight, dbias = grads
    return dresidual, dy, dgate, dscale, dshift, dweight, dbias


@gate_norm_modulate_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    _, _, _, y, _, _, gate, _, weight, bias, *_ = arguments
    tokens, rows = (y.new_empty(y.shape) for _ in range(2)), (gate.new_empty(gate.shape) for _ in range(3))
    return *tokens, *rows, empty_like(weight, y), empty_like(bias, y)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *_, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    _keep(ctx, inputs[:8], inputs[8:], output)


def _keep(ctx: Any, tensors: tuple[Any, ...], flags: Any, output: tuple[torch.Tensor, ...]) -> None:
    _, y, gate, scale, _, weight, bias, cu_seqlens = tensors
    h, _, mean, rstd = output
    ctx.flags = flags
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(h, y, mean, rstd, gate, scale, weight, bias, cu_seqlens)


def _gradients(
    ctx: Any, dh: torch.Tensor | None, dout: torch.Tensor | None, backward: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of all tensors."""
    h, *_, weight, bias, _ = saved = ctx.saved_tensors
    dout = torch.zeros_like(h) if dout is None else dout
    *gradients, dweight, dbias = backward(dh, dout, *saved, *ctx.flags)
    return *gradients, None if weight is None else dweight, None if bias is None else dbias, None


gate_norm_modulate.register_autograd(
    lambda ctx, dh, dout, _mean, _rstd: (
        *_gradients(ctx, dh, dout, gate_norm_modulate_backward),
        *(None, None, None),
    ),
    setup_context=_setup,
)


class _Function(torch.autograd.Function):
    """Operator without dispatcher and statistics as outputs, which both cost host time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        tensors, flags = inputs[:-1], inputs[-1]
        output = _forward(*tensors, *flags)
        _keep(ctx, tensors, flags, output)
        return output[:2]

    @staticmethod
    def backward(
        ctx: Any, dh: torch.Tensor | None, dout: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gradients = _once_gradients if torch.is_grad_enabled() else _gradients
        return *gradients(ctx, dh, dout, _backward), None


_once_gradients = once_differentiable(_gradients)
