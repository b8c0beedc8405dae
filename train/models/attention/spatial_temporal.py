"""Spatial and temporal attention: within frames, or within places through time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from reelweave.train.kernels.dense_attention import dense_attention


@dataclass(frozen=True, eq=False)
class SpatialTemporalAttention:
    """Attention within slices of each sample, in a batch of one grid or a pack of several.

    Attributes:
        grids: tokens along time, rows and columns of each sample of a pack, 0 allowed; a single entry for equal
            samples.
        axis: common property of a slice's tokens: frame (spatial) or place (temporal).
    """

    grids: Sequence[tuple[int, int, int]]
    axis: Literal["frame", "place"]

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        """Attend within slices; tokens are ordered by time, row, column."""
        lengths = [math.prod(grid) for grid in self.grids]
        parts = (torch.split(x_BHLD, lengths, dim=2) for x_BHLD in (q_BHLD, k_BHMD, v_BHMD))
        return torch.cat([self._attend(*part) for part in zip(self.grids, *parts, strict=True)], dim=2)

    def _attend(self, grid: tuple[int, int, int], *qkv: torch.Tensor) -> torch.Tensor:
        if 0 in grid:
            # Kernels need at least one slice; keep the autograd graph for an empty result.
            return torch.stack(qkv).sum(dim=0)
        axis = 1 if self.axis == "frame" else 2
        q_NHSD, k_NHSD, v_NHSD = (_slices(x_BHLD, grid[0], axis) for x_BHLD in qkv)
        y_NHSD = dense_attention(q_NHSD, k_NHSD, v_NHSD)
        y_BTPHD = torch.unflatten(y_NHSD.transpose(1, 2), 0, (len(qkv[0]), -1)).movedim(1, axis)
        return y_BTPHD.flatten(1, 2).transpose(1, 2)


def _slices(x_BHLD: torch.Tensor, frames: int, axis: int) -> torch.Tensor:
    """Slice [time, place] along one axis, counted from 1, and stack the slices as a batch, [N, H, S, D]."""
    # Projections are [B, L, H, D] in memory, so that these are views: frames always, places for B = 1.
    x_BTPHD = torch.unflatten(x_BHLD.transpose(1, 2), 1, (frames, -1))
    return x_BTPHD.movedim(axis, 1).flatten(0, 1).transpose(1, 2)
