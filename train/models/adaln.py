"""Adaptive layer norm: modulation and gated residuals of a DiT block.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2. These operations are bound by
memory traffic and run as the fused operators of `reelweave.train.kernels`, which read a sample's vectors in place.
"""

from typing import Any

import torch

from reelweave.train.kernels.gate_norm_modulate.operator import gate_residual_norm_modulate
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate
from reelweave.train.models.attention.segments import Segments
from reelweave.train.models.precision.float32 import numerics_on

EPS = 1e-6


def modulate(
    x_BLD: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor, segments: Segments | None = None
) -> torch.Tensor:
    """Return ``norm(x) * (1 + scale) + shift``, [B, L, D]; norm is a layer norm over D without weights.

    Args:
        x_BLD: tokens; [1, L, D] if packed.
        shift_BD: shift of each sample.
        scale_BD: scale of each sample.
        segments: samples of a packed sequence; None: each row of ``x`` is a sample.
    """
    return layer_norm_modulate(x_BLD, scale_BD, shift_BD, EPS, **_how(x_BLD, segments))


def gate_residual(
    x_BLD: torch.Tensor, branch_BLD: torch.Tensor, gate_BD: torch.Tensor, segments: Segments | None = None
) -> torch.Tensor:
    """Return ``x + gate * branch``, [B, L, D]; arguments as in `modulate`."""
    gate = gate_BD[:, None] if segments is None else segments.spread(gate_BD)[None]
    return x_BLD + gate * branch_BLD


def gate_residual_modulate(
    x_BLD: torch.Tensor,
    branch_BLD: torch.Tensor,
    gate_BD: torch.Tensor,
    shift_BD: torch.Tensor,
    scale_BD: torch.Tensor,
    segments: Segments | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `gate_residual`, and `modulate` of it; [B, L, D] each."""
    how = _how(x_BLD, segments)
    return gate_residual_norm_modulate(x_BLD, branch_BLD, gate_BD, scale_BD, shift_BD, EPS, **how)


def _how(x_BLD: torch.Tensor, segments: Segments | None) -> dict[str, Any]:
    cu_seqlens = None if segments is None else segments.cu_seqlens
    return {"cu_seqlens": cu_seqlens, "numerics": numerics_on(x_BLD)}
