"""The operators as diffusers' blocks want them: a norm with or without weights, vectors of each sample or token.

They take the norm and the modulation in float32 and round once (``numerics="fp32"``, what kernels serve). Wan does the
same; the chains of the other families round more often.
"""

import torch
from torch import nn

from train.kernels.gate_norm_modulate import gate_residual_norm_modulate
from train.kernels.norm_modulate import layer_norm_modulate


def modulate(
    norm: nn.LayerNorm,
    x_BLD: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift``, [B, L, D]; vectors are [B, D] or [1, D], or [B, L, D] of each token."""
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
    """``h = residual + gate * y`` and `modulate` of h; [B, L, D] each, of the residual's type."""
    gate, scale, shift = (_fitting(rows, residual_BLD, cu_seqlens) for rows in (gate, scale, shift))
    # Under autocast a branch can be narrower than a residual stream of float32.
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
    """Vectors as tokens [B, L, D] meet them in plain arithmetic."""
    return rows[:, None] if rows.dim() == 2 else rows


def _fitting(rows: torch.Tensor, x_BLD: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """Vectors in a type that the operators take with x, one of several samples spread to all, as broadcasting does."""
    rows = rows.to(torch.promote_types(rows.dtype, x_BLD.dtype))
    return rows if cu_seqlens is not None else rows.expand(x_BLD.shape[0], *rows.shape[1:])
