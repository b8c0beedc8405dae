"""Inputs of the operators in reelweave.train.kernels, their definition in float64, and what stood before them."""

import torch
from torch.nn import functional as F

EPS = 1e-6
FORMS = ("sample", "frame", "token", "packed")


def rows_of(form, B, F_, L):
    """Shape of a modulation without its width, and cu_seqlens; packed groups are of any length, one empty."""
    if form == "packed":
        return (4,), torch.tensor([0, L // 3, L // 3, L // 3 + L // 2, L], dtype=torch.int32)
    return {"sample": (B,), "frame": (B, F_), "token": (B, L)}[form], None


def case(form="sample", B=2, L=6, D=8, frames=3, dtype=torch.float32, rows_dtype=None, affine=False, seed=0):
    """Two tensors of tokens, gate, scale and shift as views of one modulation, weight and bias, cu_seqlens."""
    draw = torch.Generator().manual_seed(seed)
    B = 1 if form == "packed" else B
    shape, cu_seqlens = rows_of(form, B, frames, L)
    tokens = [(torch.randn(B, L, D, generator=draw, dtype=torch.float64) * 2 + 1).to(dtype) for _ in range(2)]
    modulation = torch.randn(*shape, 3 * D, generator=draw, dtype=torch.float64).to(rows_dtype or dtype)
    gate, scale, shift = modulation.chunk(3, dim=-1)
    weight, bias = (
        torch.randn(2, D, generator=draw, dtype=torch.float64).to(dtype) if affine else (None, None)
    )
    return tokens, (gate, scale, shift), (weight, bias), cu_seqlens


def over_tokens(rows, L, cu_seqlens):
    """A row for every token, [B, L, D]."""
    if cu_seqlens is not None:
        return rows.repeat_interleave(cu_seqlens.diff().long(), dim=0)[None]
    if rows.dim() == 2:
        rows = rows[:, None]
    return rows.repeat_interleave(L // rows.shape[1], dim=1)


def defined(x, scale, shift, weight, bias, cu_seqlens, rms=False):
    """norm(x) * (1 + scale) + shift, as the words say."""
    centred = x if rms else x - x.mean(-1, keepdim=True)
    n = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    n = n if weight is None else n * weight
    n = n if bias is None else n + bias
    L = x.shape[1]
    return n * (1 + over_tokens(scale, L, cu_seqlens)) + over_tokens(shift, L, cu_seqlens)


def defined_gated(residual, y, gate, scale, shift, weight, bias, cu_seqlens, rms=False):
    h = residual + over_tokens(gate, y.shape[1], cu_seqlens) * y
    return h, defined(h, scale, shift, weight, bias, cu_seqlens, rms)


def gradients(outputs, upstream, inputs):
    """Of the inputs that there are."""
    return torch.autograd.grad(outputs, [x for x in inputs if x is not None], upstream)


def leaves(*tensors, dtype=None):
    """The tensors, strides kept, as something that gradients are asked for."""
    return [None if x is None else x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]


def error(found, exact):
    """The largest error, in units of the largest exact value."""
    exact = exact.detach()
    return float((found.detach().double() - exact).abs().max() / exact.abs().max())


def modulate_before(x_BLD, shift_BD, scale_BD, segments=None):
    normed_BLD = F.layer_norm(x_BLD, x_BLD.shape[-1:], eps=EPS)
    return normed_BLD * (1 + _over(scale_BD, segments)) + _over(shift_BD, segments)


def gate_residual_before(x_BLD, branch_BLD, gate_BD, segments=None):
    return x_BLD + _over(gate_BD, segments) * branch_BLD


def qk_norm_before(q_BLHd, k_BMHd, weight_q, weight_k, eps, rotation=None, *, numerics=None):
    """What the attention of the DiT did to queries and keys."""
    return tuple(
        _normed_before(x, weight, eps, rotation) for x, weight in ((q_BLHd, weight_q), (k_BMHd, weight_k))
    )


def _normed_before(x_BLHd, weight_d, eps, rotation):
    x_BHLd = x_BLHd.transpose(1, 2)
    wide_BHLd = x_BHLd.to(torch.promote_types(x_BHLd.dtype, torch.float32))
    n_BHLd = F.rms_norm(wide_BHLd, weight_d.shape, weight_d, eps)
    if rotation is not None:
        (a, b), (cos, sin) = n_BHLd.chunk(2, dim=-1), rotation
        n_BHLd = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return n_BHLd.to(x_BLHd.dtype).transpose(1, 2)


def _over(rows_BD, segments):
    return rows_BD[:, None] if segments is None else segments.spread(rows_BD)[None]
