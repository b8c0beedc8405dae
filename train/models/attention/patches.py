"""Conversion between a grid of values and its space-time patches."""

import torch

Patch = tuple[int, int, int]
"""Frames, rows and columns of a patch."""


def cut(x_BCTHW: torch.Tensor, patch: Patch) -> torch.Tensor:
    """Return patches of ``x``, [B, T/t, H/h, W/w, C, t*h*w]; the sizes must divide."""
    t, h, w = patch
    B, C, T, H, W = x_BCTHW.shape
    x = x_BCTHW.reshape(B, C, T // t, t, H // h, h, W // w, w)
    return x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(5)


def join(patches_BTHWCP: torch.Tensor, patch: Patch) -> torch.Tensor:
    """Return the grid of patches, [B, C, T*t, H*h, W*w]; inverts ``cut``."""
    t, h, w = patch
    B, T, H, W, C, _ = patches_BTHWCP.shape
    x = patches_BTHWCP.reshape(B, T, H, W, C, t, h, w).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.reshape(B, C, T * t, H * h, W * w)
