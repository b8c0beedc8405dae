"""Common form of all objectives: a few numbers per noise level.

A noisy latent is x = signal * x_0 + noise * eps. From ``scale * x`` and ``timestep_input`` the model predicts
``target_signal * x_0 + target_noise * eps``; ``weight`` multiplies the squared error. Flow matching, EDM and
DDPM differ only in these numbers, so that training and sampling are written once. Source: Kingma and Gao,
"Understanding Diffusion Objectives as the ELBO", 2023.
"""

from dataclasses import dataclass, fields
from typing import Protocol

import torch


@dataclass(frozen=True, eq=False)
class Level:
    """Noise levels, float64 [B] each.

    Attributes:
        signal: coefficient of the clean latent in the noisy one.
        noise: coefficient of the standard normal noise.
        scale: multiplier of the model's input.
        timestep_input: timestep input of the model.
        target_signal: coefficient of the clean latent in the target.
        target_noise: coefficient of the noise in the target.
        weight: weight of the squared error.
    """

    signal: torch.Tensor
    noise: torch.Tensor
    scale: torch.Tensor
    timestep_input: torch.Tensor
    target_signal: torch.Tensor
    target_noise: torch.Tensor
    weight: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "Level":
        """Return the same levels in a dtype, by one copy to a device."""
        return Level.of(self.stack().to(device, dtype))

    def stack(self) -> torch.Tensor:
        """Return all numbers as one tensor, [7, B]."""
        return torch.stack([getattr(self, field.name) for field in fields(self)])

    @classmethod
    def of(cls, stacked_NB: torch.Tensor) -> "Level":
        """Return the levels of `stack`."""
        return cls(*stacked_NB.unbind())

    def __getitem__(self, index: int) -> "Level":
        """Return one level, [1] each."""
        return Level(*(getattr(self, field.name)[index : index + 1] for field in fields(self)))


class Objective(Protocol):
    """Training objective; each has its own unit of time."""

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the time of a training sample, a function of one standard normal number that rises with the noise.

        The time is the quantile Phi(normal) of the training distribution, so that fixed quantiles can be
        evaluated, too. Scalar, since a sample's time must not depend on its batch in the last bit.

        Args:
            normal: standard normal, a scalar.
            tokens: number of video tokens of the sample.
        """

    def level(self, times_B: torch.Tensor) -> Level:
        """Return the noise levels of these times."""

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:
        """Return sampling times from most noise to least, float64 [steps]; the step after the last ends at no noise.

        Raises:
            UsageError: the objective has fewer levels.
        """


def pose(
    level: Level, clean_BCTHW: torch.Tensor, noise_BCTHW: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the model's input and target, [B, C, T, H, W] each.

    Args:
        level: B levels, in the dtype of the latents.
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
    """Return the clean latent and the noise implied by a prediction, [B, C, T, H, W] each.

    Solves the equations of the noisy latent and of the prediction.
    """
    signal, noise = _wide(level.signal), _wide(level.noise)
    target_signal, target_noise = _wide(level.target_signal), _wide(level.target_noise)
    determinant = signal * target_noise - noise * target_signal
    clean_BCTHW = (target_noise * noisy_BCTHW - noise * prediction_BCTHW) / determinant
    noise_BCTHW = (signal * prediction_BCTHW - target_signal * noisy_BCTHW) / determinant
    return clean_BCTHW, noise_BCTHW


def quantile(normal: torch.Tensor) -> torch.Tensor:
    """Return Phi, the share of standard normal numbers below these, float64."""
    shares: torch.Tensor = torch.special.ndtr(normal.double())
    return shares


def _wide(x_B: torch.Tensor) -> torch.Tensor:
    return x_B[:, None, None, None, None]
