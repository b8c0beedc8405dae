"""Rectified flow with noise that belongs to the sample, not to the process that draws it.

Liu et al., "Flow Straight and Fast", 2022, eq. 1; times are logit-normal as in Esser et al., "Scaling
Rectified Flow Transformers", 2024, eq. 19.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from train.config import FlowConfig
from train.models.precision import at_least_float32


@dataclass(frozen=True)
class Draw:
    """The random part of a microbatch.

    Attributes:
        times: in (0, 1), [B]; 0 is data, 1 is noise.
        noise: standard normal, [B, C, T, H, W].
        dropped: which samples are trained without their caption, B of them.
    """

    times: torch.Tensor
    noise: torch.Tensor
    dropped: list[bool]


def draw(
    config: FlowConfig, seed: int, keys: Sequence[str], passes: Sequence[int], latent_shape: Sequence[int]
) -> Draw:
    """Time, noise and caption dropout of each sample, on the CPU, as a function of (seed, key, pass).

    A sample draws the same values on any rank, in any batch and after a resume.

    Args:
        config: distribution of the times, share of dropped captions.
        seed: of the run.
        keys: the samples' keys, length B.
        passes: how often each sample was drawn before, length B.
        latent_shape: (C, T, H, W) of one sample.
    """
    dropped, times, noise = [], [], []
    for key, passed in zip(keys, passes, strict=True):
        digest = hashlib.blake2b(f"{seed}/{passed}/{key}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        dropped.append(torch.rand((), generator=generator).item() < config.caption_dropout)
        logit = config.time_mean + config.time_std * torch.randn((), generator=generator)
        times.append(torch.sigmoid(logit))
        noise.append(torch.randn(tuple(latent_shape), generator=generator))
    return Draw(torch.stack(times), torch.stack(noise), dropped)


def interpolate(
    clean_BCTHW: torch.Tensor, noise_BCTHW: torch.Tensor, t_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The point x_t = (1 - t) x_0 + t eps on the way to noise, and its velocity eps - x_0."""
    t = t_B[:, None, None, None, None]
    return (1 - t) * clean_BCTHW + t * noise_BCTHW, noise_BCTHW - clean_BCTHW


def sample_losses(prediction_BCTHW: torch.Tensor, velocity_BCTHW: torch.Tensor) -> torch.Tensor:
    """Mean squared error of each sample, at least float32 [B]."""
    return (at_least_float32(prediction_BCTHW) - velocity_BCTHW).square().flatten(1).mean(dim=1)
