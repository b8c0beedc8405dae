"""How far pixels are off."""

import torch


def squared_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Mean squared error of each sample over its pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).square().flatten(1).mean(dim=1)


def absolute_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Mean absolute error of each sample over its pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).abs().flatten(1).mean(dim=1)
