"""Queries and keys of diffusers' `Attention`, whose heads are normed one by one: norms and rotation as one operator."""

from typing import Any

import torch
from diffusers.models.normalization import RMSNorm

from reelweave.train.kernels.qk_norm.operator import qk_norm
from reelweave.train.kernels.shared.rows import accumulator

Rotation = tuple[torch.Tensor, torch.Tensor]


def served(attention: Any, processor: type, kwargs: dict[str, Any]) -> bool:
    """Return True if a fused attention does the work of its processor, with these arguments.

    With another processor, positions in another form or norms with a bias it stays diffusers' own. A processor of
    ours for parts of a sequence keeps diffusers' for whole ones.
    """
    rotation = kwargs.get("image_rotary_emb")
    plain = rotation is None or (type(rotation) is tuple and all(x.ndim == 2 for x in rotation))
    norms = [module for name, module in attention.named_children() if name.startswith("norm_")]
    alike = all(norm.bias is None and norm.eps == attention.norm_q.eps for norm in norms)
    used = getattr(attention.processor, "theirs", attention.processor)
    return type(used) is processor and kwargs.keys() <= {"image_rotary_emb"} and plain and alike


def by_head(attention: Any, x_BLD: torch.Tensor, *layers: Any) -> list[torch.Tensor]:
    """Return the results of linear layers, [B, L, H, d] each."""
    return [layer(x_BLD).unflatten(2, (attention.heads, -1)) for layer in layers]


def norm_heads(
    q_BLHd: torch.Tensor,
    k_BMHd: torch.Tensor,
    norm_q: RMSNorm,
    norm_k: RMSNorm,
    angles: Rotation | None = None,
    *,
    interleaved: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm each head and rotate by `angles`; in the shapes and the dtype of queries and keys."""
    return qk_norm(
        q_BLHd,
        k_BMHd,
        norm_q.weight,
        norm_k.weight,
        norm_q.eps,
        angles,
        across_heads=False,
        interleaved=interleaved,
    )


def pairs(rotation: Rotation, x: torch.Tensor, *, interleaved: bool = True) -> Rotation:
    """Return a cosine and a sine for each pair of channels, [L, d / 2], from diffusers' for each channel, [L, d].

    They are in the dtype of sums for ``x``, on its device.
    """
    dtype = accumulator(x.dtype)
    cos, sin = (values_Ld.to(x.device, dtype) for values_Ld in rotation)
    half = cos.shape[1] // 2
    return (cos[:, ::2], sin[:, 1::2]) if interleaved else (cos[:, :half], sin[:, :half])


def extend_angles(angles: Rotation, tokens: int) -> Rotation:
    """Return angles [L + tokens, d / 2]: tokens at the end, such as those of text, stay as they are."""
    cos, sin = (
        torch.nn.functional.pad(x, (0, 0, 0, tokens), value=at) for x, at in zip(angles, (1, 0), strict=True)
    )
    return cos, sin
