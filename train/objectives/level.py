"""The one form that all objectives share: a few numbers for each level of noise.

A noisy latent is x = signal * x_0 + noise * eps. The model gets ``scale * x``, is told ``told``, and answers with an
estimate of ``target_signal * x_0 + target_noise * eps``; the squared error counts ``weight``. Flow matching, EDM and
DDPM differ in nothing but these numbers (Kingma and Gao, "Understanding Diffusion Objectives as the ELBO", 2023), so
training and sampling are written once.
"""

from dataclasses import dataclass, fields
from typing import Protocol

import torch


@dataclass(frozen=True, eq=False)
class Level:
    """Levels of noise, float64 [B] each.

    Attributes:
        signal: of the clean latent in the noisy one.
        noise: of the standard normal noise in it.
        scale: by which the model's input is multiplied.
        told: what the model is told of the level.
        target_signal: of the clean latent in what the model predicts.
        target_noise: of the noise in it.
        weight: of the squared error of the prediction.
    """

    signal: torch.Tensor
    noise: torch.Tensor
    scale: torch.Tensor
    told: torch.Tensor
    target_signal: torch.Tensor
    target_noise: torch.Tensor
    weight: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "Level":
        """The same levels elsewhere."""
        return Level(*(getattr(self, field.name).to(device, dtype) for field in fields(self)))

    def __getitem__(self, number: int) -> "Level":
        """One of them, [1] each."""
        return Level(*(getattr(self, field.name)[number : number + 1] for field in fields(self)))


class Objective(Protocol):
    """What distinguishes one objective from another; its unit of time is its own."""

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:
        """The time of a training sample: a function, rising with the noise, of one standard normal number.

        The time is the quantile Phi(normal) of what training draws, so fixed quantiles can be asked for, too. For
        single samples: a sample's time must not depend on its batch in the last bit.

        Args:
            normal: standard normal, a scalar.
            tokens: video tokens of the sample.
        """

    def level(self, times_B: torch.Tensor) -> Level:
        """What these times mean."""

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:
        """Times for sampling, from most noise to least, float64 [steps]; the step behind the last ends without noise.

        Raises:
            UsageError: the objective has not so many.
        """


def pose(
    level: Level, clean_BCTHW: torch.Tensor, noise_BCTHW: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's input and the target of its prediction, [B, C, T, H, W] each.

    Args:
        level: B of them, in the type of the latents.
        clean_BCTHW: clean latents.
        noise_BCTHW: standard normal noise.
    """
    signal, noise = _wide(level.scale * level.signal), _wide(level.scale * level.noise)
    input_BCTHW = signal * clean_BCTHW + noise * noise_BCTHW
    target_BCTHW = _wide(level.target_signal) * clean_BCTHW + _wide(level.target_noise) * noise_BCTHW
    return input_BCTHW, target_BCTHW


def solve(
    level: Level, noisy_BCTHW: torch.Tensor, prediction_BCTHW: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clean latent and the noise that a prediction means, [B, C, T, H, W] each.

    They are the solution of two equations: that of the noisy latent and that of the prediction.
    """
    signal, noise = _wide(level.signal), _wide(level.noise)
    target_signal, target_noise = _wide(level.target_signal), _wide(level.target_noise)
    determinant = signal * target_noise - noise * target_signal
    clean_BCTHW = (target_noise * noisy_BCTHW - noise * prediction_BCTHW) / determinant
    noise_BCTHW = (signal * prediction_BCTHW - target_signal * noisy_BCTHW) / determinant
    return clean_BCTHW, noise_BCTHW


def quantile(normal: torch.Tensor) -> torch.Tensor:
    """Phi: the share of standard normal numbers below these, float64."""
    shares: torch.Tensor = torch.special.ndtr(normal.double())
    return shares


def _wide(x_B: torch.Tensor) -> torch.Tensor:
    return x_B[:, None, None, None, None]
