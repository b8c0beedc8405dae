"""Modulation and its gradients, for the references."""

import torch

from reelweave.train.kernels.shared.norm import Norm, Normed
from reelweave.train.kernels.shared.rows import collect, spread


def modulate(
    n_BFTD: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    x_BLD: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> torch.Tensor:
    """Return ``n * (1 + scale) + shift`` in the wider of the dtypes of n and scale; [B, F, T, D]."""
    wide, tokens = torch.promote_types(n_BFTD.dtype, scale.dtype), x_BLD.shape[1]
    scale, shift = scale.to(wide), shift.to(wide)
    return n_BFTD * (1 + spread(scale, tokens, cu_seqlens)) + spread(shift, tokens, cu_seqlens)


def modulated_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    normed: Normed,
    scale: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    norm: Norm,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of x (as in `Norm.backward`), scale, shift, weight and bias; tokens as in `cut`."""
    wide = torch.promote_types(normed.n.dtype, scale.dtype)
    as_autograd, tokens = norm.numerics == "eager", x.shape[1] * x.shape[2]
    dy = dy.to(wide)
    dshift = collect(dy, scale, cu_seqlens, as_autograd)
    dscale = collect(dy * normed.n, scale, cu_seqlens, as_autograd)
    dx, dweight_D, dbias_D = norm.backward(dy * (1 + spread(scale.to(wide), tokens, cu_seqlens)), x, normed)
    return dx, dscale, dshift, dweight_D, dbias_D
