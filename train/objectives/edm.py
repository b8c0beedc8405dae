"""EDM: a denoiser whose network sees inputs and targets of variance 1 at every level of noise.

Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, table 1; NeMo trains its video
models with it (Patel et al. 2025, section 4.1).
"""

from dataclasses import dataclass

import torch

from train.config.objective import EDMConfig
from train.objectives.level import Level


@dataclass(frozen=True)
class EDM:
    """x = x_0 + sigma eps; time is sigma.

    The denoiser is D = c_skip x + c_out F(c_in x, c_noise). The loss weight(sigma) |D - x_0|^2 is that of the network's
    own output F against (x_0 - c_skip x) / c_out, as weight * c_out^2 = 1.
    """

    config: EDMConfig

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """See `Objective`: log-normal."""
        return torch.exp(self.config.p_mean + self.config.p_std * normal)

    def level(self, times_B: torch.Tensor) -> Level:
        """See `Objective`; in (x_0 - c_skip x) / c_out, x_0 and eps are collected, so that nothing cancels."""
        sigma, data = times_B.double(), self.config.sigma_data
        both, one = (sigma**2 + data**2).sqrt(), torch.ones_like(sigma)
        return Level(one, sigma, 1 / both, sigma.log() / 4, sigma / (data * both), -data / both, one)

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """See `Objective`; equation 5."""
        config, ramp = self.config, torch.linspace(0, 1, steps, dtype=torch.float64)
        high, low = config.sigma_max ** (1 / config.rho), config.sigma_min ** (1 / config.rho)
        return torch.pow(high + ramp * (low - high), config.rho)
