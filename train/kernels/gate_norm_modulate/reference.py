"""Reference of `reelweave.train.kernels.gate_norm_modulate`: gated residual, norm and modulation in plain PyTorch."""

from typing import cast

import torch

from reelweave.train.kernels.shared.modulated import modulate, modulated_backward
from reelweave.train.kernels.shared.norm import Norm, Numerics
from reelweave.train.kernels.shared.rows import accumulator, collect, cut, spread


def forward(
    residual_BLD: torch.Tensor,
    y_BLD: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reelweave.train.kernels.gate_norm_modulate.operator.gate_residual_norm_modulate` in plain PyTorch.

    Returns:
        h, out, and mean (empty for the RMS norm) and rstd of each token [B, L] in the accumulator's dtype.
    """
    norm = Norm(weight_D, bias_D, eps, rms, cast(Numerics, numerics))
    wide = _wide(y_BLD, gate, numerics)
    residual, y = (cut(tokens, gate, cu_seqlens).to(wide) for tokens in (residual_BLD, y_BLD))
    h = (residual + spread(gate.to(wide), y_BLD.shape[1], cu_seqlens) * y).to(y_BLD.dtype)
    normed = norm.forward(h)
    out = modulate(normed.n, scale, shift, y_BLD, cu_seqlens).to(y_BLD.dtype)
    h, out = (tokens.reshape(y_BLD.shape).contiguous() for tokens in (h, out))
    return h, out, *norm.saved_moments(normed, y_BLD)


def backward(
    dh_BLD: torch.Tensor | None,
    dout_BLD: torch.Tensor,
    h_BLD: torch.Tensor,
    y_BLD: torch.Tensor,
    mean_BL: torch.Tensor,
    rstd_BL: torch.Tensor,
    gate: torch.Tensor,
    scale: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    numerics: str,
) -> tuple[torch.Tensor, ...]:
    """Return gradients of residual, y, gate, scale, shift, weight and bias (the latter two empty without them).

    ``dh`` is the gradient of h from its other uses; None: 0.
    """
    norm = Norm(weight_D, bias_D, eps, rms, cast(Numerics, numerics))
    h, y, dout = (cut(tokens, gate, cu_seqlens) for tokens in (h_BLD, y_BLD, dout_BLD))
    total, *parameter_grads = modulated_backward(
        dout, h, norm.again(h, mean_BL, rstd_BL), scale, cu_seqlens, norm
    )
    dscale, dshift, dweight_D, dbias_D = parameter_grads
    if dh_BLD is not None:
        total = total + cut(dh_BLD, gate, cu_seqlens)
    wide = _wide(y_BLD, gate, numerics)
    total_wide = total.to(wide)
    dgate = collect(total_wide * y, gate, cu_seqlens, as_autograd=norm.numerics == "eager")
    dy = total_wide * spread(gate.to(wide), y_BLD.shape[1], cu_seqlens)
    dresidual_BLD, dy_BLD = (
        tokens.to(y_BLD.dtype).reshape(y_BLD.shape).contiguous() for tokens in (total, dy)
    )
    return dresidual_BLD, dy_BLD, dgate, dscale, dshift, dweight_D, dbias_D


def _wide(y_BLD: torch.Tensor, gate: torch.Tensor, numerics: str) -> torch.dtype:
    """Return the dtype of the gated sum."""
    return accumulator(y_BLD.dtype) if numerics == "fp32" else torch.promote_types(y_BLD.dtype, gate.dtype)
