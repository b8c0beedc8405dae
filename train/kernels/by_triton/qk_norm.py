"""The norm of queries and keys by way of Triton; imported only where Triton is."""

from typing import Any

import torch
import triton

from train.kernels.by_triton.launch import PARTS, WIDEST, dense, on_device
from train.kernels.by_triton.qk_kernels import backward_kernel, forward_kernel
from train.kernels.reference import qk_norm


def forward(
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    numerics: str,
) -> tuple[torch.Tensor, ...]:
    """As `train.kernels.reference.qk_norm.forward`, which takes what is too wide."""
    if _too_wide(q_BLHd, k_BMGd):
        tensors = (q_BLHd, k_BMGd, weight_q, weight_k, cos, sin)
        return qk_norm.forward(*tensors, eps, across_heads, interleaved, numerics)
    q, k = map(_dense_heads, (q_BLHd, k_BMGd))
    outs = [x.new_empty(x.shape) for x in (q, k)]
    statistics = [
        x.new_empty((*x.shape[:2], 1 if across_heads else x.shape[2]), dtype=torch.float32) for x in (q, k)
    ]
    with on_device(q):
        forward_kernel[(_tokens(q) + _tokens(k),)](
            q, k, dense(weight_q), dense(weight_k), dense(cos), dense(sin), *outs, *statistics,
            _tokens(q), *_sizes(q, k), *q.stride()[:3], *k.stride()[:3], *_angle_strides(cos), eps,
            **_flags(q, k, weight_q, weight_k, cos, across_heads, interleaved),
        )  # fmt: skip
    return *outs, *statistics


def backward(
    dq_BLHd: torch.Tensor,
    dk_BMGd: torch.Tensor,
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
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
) -> tuple[torch.Tensor, ...]:
    """As `train.kernels.reference.qk_norm.backward`, which takes what is too wide."""
    if _too_wide(q_BLHd, k_BMGd):
        tensors = (dq_BLHd, dk_BMGd, q_BLHd, k_BMGd, rstd_q, rstd_k, weight_q, weight_k, cos, sin)
        return qk_norm.backward(*tensors, eps, across_heads, interleaved, numerics)
    dq, dk, q, k = map(_dense_heads, (dq_BLHd, dk_BMGd, q_BLHd, k_BMGd))
    outs = [x.new_empty(x.shape) for x in (q, k)]
    parts = [min(PARTS // 2, _tokens(x)) for x in (q, k)]
    # Of every head, also where heads share a weight: adding them up is the smaller pass.
    sums = [rstd_q.new_empty((n, *x.shape[2:])) for n, x in zip(parts, (q, k), strict=True)]
    with on_device(q):
        backward_kernel[(sum(parts),)](
            dq, dk, q, k, rstd_q, rstd_k, dense(weight_q), dense(weight_k), dense(cos), dense(sin), *outs, *sums,
            *parts, _tokens(q), _tokens(k), *_sizes(q, k), *q.stride()[:3], *k.stride()[:3],
            *dq.stride()[:3], *dk.stride()[:3], *_angle_strides(cos),
            **_flags(q, k, weight_q, weight_k, cos, across_heads, interleaved),
        )  # fmt: skip
    totals = [parts_SHd.sum(dim=0) for parts_SHd in sums]
    totals = [total.flatten() if across_heads else total.sum(dim=0) for total in totals]
    weights = [
        q.new_empty(0) if weight is None else total.to(weight.dtype)
        for weight, total in zip((weight_q, weight_k), totals, strict=True)
    ]
    return *outs, *weights


def _too_wide(*tensors: torch.Tensor) -> bool:
    return any(x.shape[2] * x.shape[3] > WIDEST for x in tensors)


def _dense_heads(x_BLHd: torch.Tensor) -> torch.Tensor:
    """A copy only of what samples, tokens and heads apart do not describe."""
    return x_BLHd if x_BLHd.stride(3) == 1 else x_BLHd.contiguous()


def _tokens(x_BLHd: torch.Tensor) -> int:
    return x_BLHd.shape[0] * x_BLHd.shape[1]


def _sizes(q_BLHd: torch.Tensor, k_BMGd: torch.Tensor) -> tuple[int, ...]:
    """L, M, H, G and d."""
    return q_BLHd.shape[1], k_BMGd.shape[1], q_BLHd.shape[2], *k_BMGd.shape[2:]


def _angle_strides(cos: torch.Tensor | None) -> tuple[int, int]:
    """From sample to sample and from token to token."""
    if cos is None:
        return 0, 0
    return (cos.shape[1] * cos.shape[2] if cos.dim() == 3 else 0), cos.shape[-1]


def _flags(
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    across_heads: bool,
    interleaved: bool,
) -> dict[str, Any]:
    """What the kernels are compiled for."""
    heads = triton.next_power_of_2(max(q_BLHd.shape[2], k_BMGd.shape[2]))
    pairs = triton.next_power_of_2((q_BLHd.shape[3] + 1) // 2)
    return {
        "ACROSS": across_heads,
        "WEIGHT_Q": weight_q is not None,
        "WEIGHT_K": weight_k is not None,
        "ROTATED": cos is not None,
        "INTERLEAVED": interleaved,
        "BLOCK_H": heads,
        "BLOCK_R": pairs,
        "num_warps": min(16, max(4, heads * pairs // 256)),
    }
