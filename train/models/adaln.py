"""The places where a DiT block meets its conditioning (adaptive layer norm).

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2. Bound by memory traffic, so they run
as the fused operators of `train.kernels`, which read a sample's vectors where they lie.
"""

from typing import Any

import torch

from train.kernels.gate_norm_modulate import gate_residual_norm_modulate
from train.kernels.norm_modulate import layer_norm_modulate
from train.models.attention.segments import Segments
from train.models.precision import numerics_on

EPS = 1e-6


def modulate(
    x_BLD: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor, segments: Segments | None = None
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift``, norm being a layer norm over D without weights; [B, L, D].

    Args:
        x_BLD: tokens; [1, L, D] where they are packed.
        shift_BD: of each sample.
        scale_BD: of each sample.
        segments: the samples of a packed sequence; None: each row of ``x`` is a sample.
    """
    return layer_norm_modulate(x_BLD, scale_BD, shift_BD, EPS, **_how(x_BLD, segments))


def gate_residual(
    x_BLD: torch.Tensor, branch_BLD: torch.Tensor, gate_BD: torch.Tensor, segments: Segments | None = None
) -> torch.Tensor:
    """``x + gate * branch``, [B, L, D]; arguments as of `modulate`."""
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
    """`gate_residual`, and `modulate` of it; [B, L, D] each."""
    how = _how(x_BLD, segments)
    return gate_residual_norm_modulate(x_BLD, branch_BLD, gate_BD, scale_BD, shift_BD, EPS, **how)


def _how(x_BLD: torch.Tensor, segments: Segments | None) -> dict[str, Any]:
    cu_seqlens = None if segments is None else segments.cu_seqlens
    return {"cu_seqlens": cu_seqlens, "numerics": numerics_on(x_BLD)}
