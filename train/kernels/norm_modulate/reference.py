"""Reference of `reelweave.train.kernels.norm_modulate`: LayerNorm or RMSNorm and modulation in plain PyTorch."""

from typing import cast

import torch

from reelweave.train.kernels.shared.modulated import modulate, modulated_backward
from reelweave.train.kernels.shared.norm import Norm, Numerics
from reelweave.train.kernels.shared.rows import cut


def forward(
    x_BLD: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reelweave.train.kernels.norm_modulate.operator.layer_norm_modulate` in plain PyTorch.

    Returns:
        y, and mean (empty for the RMS norm) and rstd of each token [B, L] in the accumulator's dtype.
    """
    norm = Norm(weight_D, bias_D, eps, rms, cast(Numerics, numerics))
    x = cut(x_BLD, scale, cu_seqlens)
    normed = norm.forward(x)
    y = modulate(normed.n, scale, shift, x_BLD, cu_seqlens)
    return y.to(x.dtype).reshape(x_BLD.shape).contiguous(), *norm.saved_moments(normed, x_BLD)


def backward(
    dy_BLD: torch.Tensor,
    x_BLD: torch.Tensor,
    mean_BL: torch.Tensor,
    rstd_BL: torch.Tensor,
    scale: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of x, scale, shift, weight and bias (the latter two empty without them)."""
    norm = Norm(weight_D, bias_D, eps, rms, cast(Numerics, numerics))
    x = cut(x_BLD, scale, cu_seqlens)
    dx, *parameter_grads = modulated_backward(
        cut(dy_BLD, scale, cu_seqlens), x, norm.again(x, mean_BL, rstd_BL), scale, cu_seqlens, norm
    )
    dscale, dshift, dweight_D, dbias_D = parameter_grads
    return dx.to(x.dtype).reshape(x_BLD.shape).contiguous(), dscale, dshift, dweight_D, dbias_D
