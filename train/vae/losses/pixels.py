"""Pixel errors of reconstructions."""

import torch


def squared_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return each sample's mean squared error over pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).square().flatten(1).mean(dim=1)


def absolute_error(made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return each sample's mean absolute error over pixels and colours, [B]; pixels in [-1, 1]."""
    return (made_BCTHW - video_BCTHW).abs().flatten(1).mean(dim=1)
