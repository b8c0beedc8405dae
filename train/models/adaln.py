"""The two places where a DiT block meets its conditioning (adaptive layer norm).

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2. These are the eager
references; they are kept apart because they are bound by memory traffic and worth fusing.
"""

import torch
from torch.nn import functional as F

from train.models.segments import Segments

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
    normed_BLD = F.layer_norm(x_BLD, x_BLD.shape[-1:], eps=EPS)
    return normed_BLD * (1 + _over(scale_BD, segments)) + _over(shift_BD, segments)


def gate_residual(
    x_BLD: torch.Tensor, branch_BLD: torch.Tensor, gate_BD: torch.Tensor, segments: Segments | None = None
) -> torch.Tensor:
    """``x + gate * branch``, [B, L, D]; arguments as of `modulate`."""
    return x_BLD + _over(gate_BD, segments) * branch_BLD


def _over(rows_BD: torch.Tensor, segments: Segments | None) -> torch.Tensor:
    """A sample's row for all of its tokens: [B, 1, D], or [1, L, D] where they are packed."""
    return rows_BD[:, None] if segments is None else segments.spread(rows_BD)[None]
