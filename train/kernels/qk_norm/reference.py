"""Reference of `reelweave.train.kernels.qk_norm`: RMS norm and rotation of queries and keys in plain PyTorch."""

import torch

from reelweave.train.kernels.qk_norm.rotary import rotate
from reelweave.train.kernels.shared.rows import accumulator


def forward(
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    across_heads: bool,
    interleaved: bool,
    _numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reelweave.train.kernels.qk_norm.operator.qk_norm` in plain PyTorch.

    Returns:
        q, k, and their 1 / root mean square in the accumulator's dtype. [B, L, H] and [B, M, G]; across heads
        [B, L, 1] and [B, M, 1].
    """
    outs, statistics = [], []
    for x_BLHd, weight in ((q_BLHd, weight_q), (k_BMGd, weight_k)):
        x = _rows(x_BLHd, across_heads)
        rstd = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
        n = x * rstd if weight is None else x * rstd * weight.to(x.dtype)
        n_BHLd = _by_head(n, x_BLHd)
        if cos is not None and sin is not None:
            n_BHLd = rotate(n_BHLd, _over_heads(cos), _over_heads(sin), interleaved)
        outs.append(n_BHLd.to(x_BLHd.dtype).transpose(1, 2).contiguous())
        rstd_BLH = rstd if across_heads else rstd.squeeze(-1).transpose(1, 2)
        statistics.append(rstd_BLH.contiguous())
    return outs[0], outs[1], statistics[0], statistics[1]


def backward(
    dq_BLHd: torch.Tensor,
    dk_BMGd: torch.Tensor,
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    rstd_q: torch.Tensor,
    rstd_k: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    _eps: float,
    across_heads: bool,
    interleaved: bool,
    _numerics: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of q, k and their weights (empty without them), summed in autograd's order."""
    gradients, of_weights = [], []
    pairs = ((dq_BLHd, q_BLHd, rstd_q, weight_q), (dk_BMGd, k_BMGd, rstd_k, weight_k))
    for dy_BLHd, x_BLHd, rstd_BLH, weight in pairs:
        x = _rows(x_BLHd, across_heads)
        rstd = rstd_BLH if across_heads else rstd_BLH.transpose(1, 2).unsqueeze(-1)
        dy_BHLd = dy_BLHd.transpose(1, 2).to(x.dtype)
        if cos is not None and sin is not None:
            dy_BHLd = rotate(dy_BHLd, _over_heads(cos), -_over_heads(sin), interleaved)
        dn = _rows(dy_BHLd.transpose(1, 2), across_heads)
        if weight is None:
            of_weights.append(x_BLHd.new_empty(0))
        else:
            of_weights.append((dn * (x * rstd)).sum(dim=list(range(dn.dim() - 1))).to(weight.dtype))
            dn = dn * weight.to(x.dtype)
        dsquare = (dn * x).sum(dim=-1, keepdim=True) * (-0.5 * rstd.pow(3)) / x.shape[-1]
        dx_BHLd = _by_head(dn * rstd + dsquare * (2 * x), x_BLHd)
        gradients.append(dx_BHLd.to(x_BLHd.dtype).transpose(1, 2).contiguous())
    return gradients[0], gradients[1], of_weights[0], of_weights[1]


def _rows(x_BLHd: torch.Tensor, across_heads: bool) -> torch.Tensor:
    """Return rows normed over the last dimension, in the accumulator's dtype: [B, H, L, d] or [B, L, H d]."""
    x_BLHd = x_BLHd.to(accumulator(x_BLHd.dtype))
    return x_BLHd.flatten(2) if across_heads else x_BLHd.transpose(1, 2)


def _by_head(rows: torch.Tensor, x_BLHd: torch.Tensor) -> torch.Tensor:
    """Return rows by head, [B, H, L, d]; inverts `_rows`."""
    return rows if rows.dim() == 4 else rows.view(x_BLHd.shape).transpose(1, 2)


def _over_heads(angles: torch.Tensor) -> torch.Tensor:
    return angles if angles.dim() == 2 else angles.unsqueeze(1)
