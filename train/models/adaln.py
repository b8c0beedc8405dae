"""The two places where a DiT block meets its conditioning (adaptive layer norm).

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2. These are the eager
references; they are kept apart because they are bound by memory traffic and worth fusing.
"""

import torch
from torch.nn import functional as F

EPS = 1e-6


def modulate(x_BLD: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift``, norm being a layer norm over D without weights; [B, L, D]."""
    normed_BLD = F.layer_norm(x_BLD, x_BLD.shape[-1:], eps=EPS)
    return normed_BLD * (1 + scale_BD[:, None]) + shift_BD[:, None]


def gate_residual(x_BLD: torch.Tensor, branch_BLD: torch.Tensor, gate_BD: torch.Tensor) -> torch.Tensor:
    """``x + gate * branch``, [B, L, D]."""
    return x_BLD + gate_BD[:, None] * branch_BLD
