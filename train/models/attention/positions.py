"""Where a token lies in time and space, and when a sample lies on its way from data to noise."""

import math

import torch

from train.models.precision import at_least_float32


def rotary_angles(grid: tuple[int, int, int], head_width: int, device: torch.device) -> torch.Tensor:
    """Rotation angles of every token of a grid, for any grid; float32 [L, head_width / 2].

    The pairs of a head are shared out over time, rows and columns, a third each, the remainder to time;
    each axis is rotated by its own position (RoFormer, Su et al. 2021, eq. 15, once per axis).

    Args:
        grid: latent frames, rows and columns in tokens; L is their product.
        head_width: even, at least 6.
        device: where the angles are made.
    """
    pairs = head_width // 2
    shares = (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)
    positions = torch.meshgrid(*(torch.arange(n, device=device) for n in grid), indexing="ij")
    angles = []
    for position, share in zip(positions, shares, strict=True):
        frequencies_R = 10_000.0 ** (-torch.arange(share, dtype=torch.float32, device=device) / share)
        angles.append(position.reshape(-1, 1) * frequencies_R)
    return torch.cat(angles, dim=1)


def time_features(t_B: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of 1000 * t at geometric frequencies; at least float32 [B, width], width even.

    As in the original transformer (Vaswani et al. 2017, section 3.5), with t in [0, 1].
    """
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, device=t_B.device))
    angles = 1000 * at_least_float32(t_B)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)
