"""Fused RMS norm and rotary positions of queries and keys, with gradients.

RMS norm: Zhang and Sennrich 2019, eq. 4. Norms of queries and keys: Dehghani et al. 2023, "Scaling Vision
Transformers to 22 Billion Parameters", section 2. Models call `qk_norm`. It saves its inputs and one number per
head (or per token) for backward.

All of it runs in float32 (float64 for float64) and is rounded once, like unfused operations that cast up, norm,
rotate and cast down. The reference thus has one arithmetic for both modes: ``eager`` guarantees equal bits on a
CPU, ``fp32`` leaves the order of sums to the kernel.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from reelweave.train.kernels.providers import call, checked_by_kernels, register
from reelweave.train.kernels.qk_norm import reference
from reelweave.train.kernels.shared.heads import are_across, check, refuse_gradients
from reelweave.train.kernels.shared.norm import Numerics, empty_like
from reelweave.train.kernels.shared.rows import accumulator
from reelweave.train.kernels.shared.traffic import PairSize


def qk_norm(
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None = None,
    weight_k: torch.Tensor | None = None,
    eps: float = 1e-6,
    rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    across_heads: bool | None = None,
    interleaved: bool = False,
    numerics: Numerics = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys, normed, weighted and rotated in this order; contiguous, in given shapes and dtype.

    Args:
        q_BLHd: queries; views, such as a third of a packed [B, L, 3, H, d], are read in place.
        k_BMGd: keys in q's dtype; their tokens and heads may differ in number from those of the queries.
        weight_q: [d], shared by heads that are normed separately; or [H d], with the heads of a token normed
            together as in Wan. In q's dtype or the accumulator's. None: 1.
        weight_k: [d] or [G d], of the same kind and dtype as ``weight_q``.
        eps: added to the mean square.
        rotation: cosines and sines of the angles of both q and k (M = L), float32, or float64 with float64 q.
            [L, d / 2] for all samples or [B, L, d / 2]. Constants without gradient.
        across_heads: norm the heads of a token together. None: as the weights imply, and without weights no.
        interleaved: rotate channels (2i, 2i + 1), as in Wan; otherwise (i, i + d / 2).
        numerics: ``eager`` keeps the bits of unfused operations on a CPU; ``fp32`` their accuracy.

    Raises:
        UsageError: shapes or dtypes do not match.
    """
    cos, sin = rotation or (None, None)
    tensors = (q_BLHd, k_BMGd, weight_q, weight_k, cos, sin)
    if not checked_by_kernels(q_BLHd, numerics):
        check(*tensors, across_heads, numerics)
    if rotation is not None:
        refuse_gradients(*rotation)
    if across_heads is None:
        across_heads = are_across(*tensors[:4])
    flags = (eps, across_heads, interleaved, numerics)
    q, k, *_ = call(qk_norm_pair, _Function, reference.forward, q_BLHd, tensors, flags)
    return q, k


def bytes_moved(size: PairSize, backward: bool = False) -> int:
    """Return the bytes of one pass over memory: 8 per channel of q and k in bfloat16, 12 in the backward."""
    return (3 if backward else 2) * size.activation + size.statistics + size.rotation


def saved_bytes(size: PairSize) -> int:
    """Return the bytes saved for backward: q and k, and the statistics; all layers share the rotation."""
    return size.activation + size.statistics


_forward = register("qk_norm", reference.forward, 0)
_backward = register("qk_norm_backward", reference.backward, 0)


@torch.library.custom_op("reelweave::qk_norm", mutates_args=())
def qk_norm_pair(
    q: torch.Tensor,
    k: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered operator; signature of the reference's `forward`."""
    outputs = _forward(q, k, weight_q, weight_k, cos, sin, eps, across_heads, interleaved, numerics)
    q_out, k_out, rstd_q, rstd_k = outputs
    return q_out, k_out, rstd_q, rstd_k


@qk_norm_pair.register_fake
def _(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    *_, across_heads, _, _ = rest
    statistics = (
        x.new_empty((*x.shape[:2], 1 if across_heads else x.shape[2]), dtype=accumulator(x.dtype))
        for x in (q, k)
    )
    return q.new_empty(q.shape), k.new_empty(k.shape), *statistics


@torch.library.custom_op("reelweave::qk_norm_backward", mutates_args=())
def qk_norm_backward(
    dq: torch.Tensor,
    dk: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    rstd_q: torch.Tensor,
    rstd_k: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the registered gradient; signature of the reference's `backward`."""
    tensors = (dq, dk, q, k, rstd_q, rstd_k, weight_q, weight_k, cos, sin)
    dq_in, dk_in, dweight_q, dweight_k = _backward(*tensors, eps, across_heads, interleaved, numerics)
    return dq_in, dk_in, dweight_q, dweight_k


@qk_norm_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    _, _, q, k, _, _, weight_q, weight_k, *_ = arguments
    return q.new_empty(q.shape), k.new_empty(k.shape), empty_like(weight_q, q), empty_like(weight_k, k)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *_, rstd_q, rstd_k = output
    ctx.mark_non_differentiable(rstd_q, rstd_k)
    _keep(ctx, inputs[:6], inputs[6:], output)


def _keep(ctx: Any, tensors: tuple[Any, ...], flags: Any, output: tuple[torch.Tensor, ...]) -> None:
    q, k, *parameters = tensors
    *_, rstd_q, rstd_k = output
    ctx.flags = flags
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, rstd_q, rstd_k, *parameters)


def _gradients(
    ctx: Any, dq: torch.Tensor | None, dk: torch.Tensor | None, backward: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of all tensors."""
    q, k, _, _, weight_q, weight_k, _, _ = saved = ctx.saved_tensors
    dq = torch.zeros_like(q) if dq is None else dq
    dk = torch.zeros_like(k) if dk is None else dk
    dq, dk, dweight_q, dweight_k = backward(dq, dk, *saved, *ctx.flags)
    return (
        dq,
        dk,
        None if weight_q is None else dweight_q,
        None if weight_k is None else dweight_k,
        None,
        None,
    )


qk_norm_pair.register_autograd(
    lambda ctx, dq, dk, _rstd_q, _rstd_k: (*_gradients(ctx, dq, dk, qk_norm_backward), *[None] * 4),
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
        ctx: Any, dq: torch.Tensor | None, dk: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gradients = _once_gradients if torch.is_grad_enabled() else _gradients
        return *gradients(ctx, dq, dk, _backward), None


_once_gradients = once_differentiable(_gradients)
