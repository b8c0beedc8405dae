"""Attention over one block of keys with its log-sum-exp, and its gradient given the sums over all blocks.

PyTorch's public attention does not return the log-sum-exp, so the operators beneath it are called here. Their
backward gets output and log-sum-exp over all keys. Then exp(score - lse) is a key's share of the whole
softmax, and each block yields its part of the exact gradient. Source: Dao et al., "FlashAttention", 2022,
appendix B.4.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from reelweave.train.models.precision.float32 import at_least_float32

ops = torch.ops.aten
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SCORES = 2**24
"""Maximum number of scores in memory for `PLAIN`: 64 MiB in float32."""


class LocalAttention(NamedTuple):
    """One implementation. No tensor may be empty.

    Attributes:
        forward: maps (q_BHLD, k_BHMD, v_BHMD) to the output and the log-sum-exp of the scores. The output is
            [B, H, L, D] in the dtype of q, the other at least float32 [B, H, L].
        backward: maps (dout_BHLD, q_BHLD, k_BHMD, v_BHMD, out_BHLD, lse_BHL) to dq, dk, dv; out and lse are
            over all keys.
    """

    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    backward: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Triple
    ]


def local_attention(q_BHLD: torch.Tensor) -> LocalAttention:
    """Return the fastest implementation for device, dtype and head width."""
    if q_BHLD.device.type == "cpu":
        return CPU
    half = q_BHLD.dtype in (torch.bfloat16, torch.float16)
    if q_BHLD.is_cuda and half and q_BHLD.shape[-1] % 8 == 0 and q_BHLD.shape[-1] <= 256:
        return FLASH
    return PLAIN


def _cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return out, lse


def _cpu_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> Triple:
    dq, dk, dv = ops._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, q, k, v, out, lse.contiguous(), 0.0, False
    )
    return dq, dk, dv


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = ops._scaled_dot_product_flash_attention(q, k, v)
    return out, lse


def _flash_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> Triple:
    # Generator state for dropout, unread since there is none.
    state, offset = (torch.empty(size, dtype=torch.uint64, device=q.device) for size in ((2,), ()))
    dq, dk, dv = ops._scaled_dot_product_flash_attention_backward(
        dout,
        q,
        k,
        v,
        out,
        lse.contiguous(),
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        False,
        state,
        offset,
    )
    return dq, dk, dv


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.empty_like(q), at_least_float32(q.new_empty(q.shape[:-1]))
    with torch.autocast(q.device.type, enabled=False):
        wide_k, wide_v = at_least_float32(k), at_least_float32(v)
        for rows in _rows(q, k):
            scores = _scores(q[:, :, rows], wide_k)
            lse[:, :, rows] = scores.logsumexp(dim=-1)
            out[:, :, rows] = scores.softmax(dim=-1) @ wide_v
    return out, lse


def _plain_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> Triple:
    wide_k, wide_v = at_least_float32(k), at_least_float32(v)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(wide_k), torch.zeros_like(wide_v)
    for rows in _rows(q, k):
        wide_q, wide_dout = at_least_float32(q[:, :, rows]), at_least_float32(dout[:, :, rows])
        shares = (_scores(wide_q, wide_k) - lse[:, :, rows, None]).exp()
        dv += shares.mT @ wide_dout
        change = (wide_dout * at_least_float32(out[:, :, rows])).sum(dim=-1, keepdim=True)
        dscores = shares * (wide_dout @ wide_v.mT - change) * _scale(q)
        dq[:, :, rows] = dscores @ wide_k
        dk += dscores.mT @ wide_q
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _scale(q: torch.Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])


def _scores(q: torch.Tensor, wide_k: torch.Tensor) -> torch.Tensor:
    return at_least_float32(q) @ wide_k.mT * _scale(q)


def _rows(q_BHLD: torch.Tensor, k_BHMD: torch.Tensor) -> list[slice]:
    """Split queries so that the scores of each part stay below the limit."""
    B, H, L, _ = q_BHLD.shape
    size = max(1, SCORES // (B * H * k_BHMD.shape[2]))
    return [slice(start, start + size) for start in range(0, L, size)]


CPU = LocalAttention(_cpu, _cpu_backward)
"""PyTorch's blocked attention for processors, in any floating type."""
FLASH = LocalAttention(_flash, _flash_backward)
"""Flash attention: CUDA, bfloat16 and float16, heads of a multiple of 8 up to 256 wide."""
PLAIN = LocalAttention(_plain, _plain_backward)
"""Matrix products, some queries at a time: any device, type and width."""
