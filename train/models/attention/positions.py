"""Positions of tokens: in a whole video or in a window of it, and as rotary angles; timestep features."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from reelweave.train.models.precision.float32 import at_least_float32


class Window(NamedTuple):
    """Place of latents in a larger video, in which their tokens keep their positions.

    Attributes:
        start: first latent frame, row and column.
        full_size: latent frames, rows and columns of the whole video.
    """

    start: tuple[int, int, int]
    full_size: tuple[int, int, int]


def box_tokens(start: Sequence[int], size: Sequence[int], grid: Sequence[int]) -> torch.Tensor:
    """Return the indices of a box of tokens in the sequence of a grid, int64 [L], in order.

    Args:
        start: first frame, row and column of the box, in tokens.
        size: frames, rows and columns of the box.
        grid: frames, rows and columns of the grid.
    """
    T, H, W = (torch.arange(first, first + count) for first, count in zip(start, size, strict=True))
    return ((T[:, None, None] * grid[1] + H[:, None]) * grid[2] + W).flatten()


def rotary_angles(
    grid: tuple[int, int, int], head_width: int, device: torch.device, base: float = 10_000.0
) -> torch.Tensor:
    """Return the rotation angles of every token of any grid; float32 [L, head_width / 2].

    Time, rows and columns each get a third of a head's pairs, the remainder goes to time. Each axis rotates by
    its own position (RoFormer, Su et al. 2021, eq. 15, once per axis).

    Args:
        grid: latent frames, rows and columns in tokens; L is their product.
        head_width: width of a head, even, at least 6.
        device: device of the result.
        base: ratio of the greatest frequency to the least.
    """
    pairs = head_width // 2
    shares = (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)
    positions = torch.meshgrid(*(torch.arange(n, device=device) for n in grid), indexing="ij")
    angles = []
    for position, share in zip(positions, shares, strict=True):
        frequencies_R = base ** (-torch.arange(share, dtype=torch.float32, device=device) / share)
        angles.append(position.reshape(-1, 1) * frequencies_R)
    return torch.cat(angles, dim=1)


def place_features(grid: tuple[int, int, int], width: int, device: torch.device) -> torch.Tensor:
    """Return sines and cosines of every token's time, row and column; float32 [L, width], width even.

    Each axis has a third of the pairs, the remainder goes to time. Places are far fewer than the words of a text, so
    frequencies fall from 1 to 1 / 100 only (Vaswani et al. 2017, section 3.5, once per axis).

    Args:
        grid: latent frames, rows and columns in tokens; L is their product.
        width: number of features.
        device: device of the result.
    """
    angles_LR = rotary_angles(grid, width, device, base=100.0)
    return torch.cat([angles_LR.sin(), angles_LR.cos()], dim=1)


def time_features(t_B: torch.Tensor, width: int) -> torch.Tensor:
    """Return sines and cosines of 1000 * t at geometric frequencies; at least float32 [B, width], width even.

    Follows the original transformer (Vaswani et al. 2017, section 3.5), with t in [0, 1].
    """
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, device=t_B.device))
    angles = 1000 * at_least_float32(t_B)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)
