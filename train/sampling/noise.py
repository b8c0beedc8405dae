"""Starting noise of a video: a function of its seed and size alone."""

from collections.abc import Sequence

import torch


def starting_noise(seeds: Sequence[int], shape_CTHW: Sequence[int]) -> torch.Tensor:
    """Draw standard normal noise, float32 [B, C, T, H, W], on the CPU.

    A video's noise does not depend on device, dtype, batch or layout: every rank draws the same bits.

    Args:
        seeds: seed of each of B videos.
        shape_CTHW: channels, frames, rows and columns of the latents.
    """
    each = [torch.randn(*shape_CTHW, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(each)
