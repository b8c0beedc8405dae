"""Rotary positions: pairs of a head's channels rotated by their token's angles (RoFormer, Su et al. 2021, eq. 15)."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotate every pair in the last dimension of ``x``; negated sines invert it.

    Args:
        x: [..., d], d even.
        cos: cosines of the angles, broadcast to [..., d / 2].
        sin: sines of the angles, like ``cos``.
        interleaved: pairs are channels (2i, 2i + 1), as in Wan; otherwise (i, i + d / 2).
    """
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
