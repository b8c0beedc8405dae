"""Operators in the form of diffusers' blocks: norms with or without weights, rows per sample or token.

Norm and modulation run in float32 and are rounded once (``numerics="fp32"``, which kernels support), as in
Wan. Unfused operations of the other families round more often.
"""

import torch
from torch import nn

from reelweave.train.kernels.gate_norm_modulate.operator import gate_residual_norm_modulate
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate


def modulate(
    norm: nn.LayerNorm,
    x_BLD: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``norm(x) * (1 + scale) + shift``, [B, L, D]; rows are [B, D] or [1, D], or [B, L, D] per token."""
    scale, shift = (_fitting(rows, x_BLD, cu_seqlens) for rows in (scale, shift))
    return layer_norm_modulate(
        x_BLD, scale, shift, norm.eps, weight_D=norm.weight, bias_D=norm.bias, cu_seqlens=cu_seqlens
    )


def gate_modulate(
    norm: nn.LayerNorm,
    residual_BLD: torch.Tensor,
    y_BLD: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``h = residual + gate * y`` and `modulate` of h; [B, L, D] each, in the residual's dtype."""
    gate, scale, shift = (_fitting(rows, residual_BLD, cu_seqlens) for rows in (gate, scale, shift))
    # Under autocast a branch may be narrower than a float32 residual stream.
    y_BLD = y_BLD.to(residual_BLD.dtype)
    return gate_residual_norm_modulate(
        residual_BLD,
        y_BLD,
        gate,
        scale,
        shift,
        norm.eps,
        False,
        norm.weight,
        norm.bias,
        cu_seqlens=cu_seqlens,
    )


def over_tokens(rows: torch.Tensor) -> torch.Tensor:
    """Return rows that broadcast over tokens [B, L, D]."""
    return rows[:, None] if rows.dim() == 2 else rows


def _fitting(rows: torch.Tensor, x_BLD: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """Cast rows to a dtype that operators support with x, and expand a single sample's rows to all."""
    rows = rows.to(torch.promote_types(rows.dtype, x_BLD.dtype))
    return rows if cu_seqlens is not None else rows.expand(x_BLD.shape[0], *rows.shape[1:])
