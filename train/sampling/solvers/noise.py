"""Noise of a video: a function of its seed, size and step alone."""

from collections.abc import Sequence

import torch

from reelweave.loader.base.philox import words
from reelweave.train.sampling.config import SEEDS

_STEP_NOISE = 1
"""Stream of random words for seeds of steps."""


def starting_noise(seeds: Sequence[int], shape_CTHW: Sequence[int]) -> torch.Tensor:
    """Draw standard normal noise, float32 [B, C, T, H, W], on the CPU.

    A video's noise does not depend on device, dtype, batch or layout: every rank draws the same bits.

    Args:
        seeds: seed of each of B videos, below `reelweave.train.sampling.config.SEEDS`.
        shape_CTHW: channels, frames, rows and columns of the latents.
    """
    if any(not 0 <= seed < SEEDS for seed in seeds):
        raise ValueError(f"seeds {seeds} must be 0 to {SEEDS - 1}: torch ignores higher bits")
    each = [torch.randn(*shape_CTHW, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(each)


def step_noise(seeds: Sequence[int], step: int, shape_CTHW: Sequence[int]) -> torch.Tensor:
    """Draw the new noise of a step, as `starting_noise`; it depends on no earlier draw.

    Args:
        seeds: seed of each of B videos.
        step: index of the step, from 1.
        shape_CTHW: channels, frames, rows and columns of the latents.
    """
    derived = [int(words(seed, step, _STEP_NOISE, 1)[0]) % SEEDS for seed in seeds]
    return starting_noise(derived, shape_CTHW)
