"""EDM: preconditioning gives the network inputs and targets of variance 1 at every noise level.

Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, table 1; used for
NeMo's video models (Patel et al. 2025, section 4.1).
"""

from dataclasses import dataclass

import torch

from reelweave.train.config.objective import EDMConfig
from reelweave.train.objectives.level import Level


@dataclass(frozen=True)
class EDM:
    """Forward process x = x_0 + sigma eps; the time is sigma.

    The denoiser is D = c_skip x + c_out F(c_in x, c_noise). Since weight * c_out^2 = 1, the loss
    weight(sigma) |D - x_0|^2 is a plain one of the network's output. It compares F with (x_0 - c_skip x) /
    c_out.
    """

    config: EDMConfig

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """Return a log-normal sigma."""
        return torch.exp(self.config.p_mean + self.config.p_std * normal)

    def level(self, times_B: torch.Tensor) -> Level:
        """Return levels; targets (x_0 - c_skip x) / c_out are expanded in x_0 and eps to avoid cancellation."""
        sigma, data = times_B.double(), self.config.sigma_data
        both, ones = (sigma**2 + data**2).sqrt(), torch.ones_like(sigma)
        return Level(ones, sigma, 1 / both, sigma.log() / 4, sigma / (data * both), -data / both, ones)

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """Return sigmas by equation 5."""
        config, ramp = self.config, torch.linspace(0, 1, steps, dtype=torch.float64)
        high, low = config.sigma_max ** (1 / config.rho), config.sigma_min ** (1 / config.rho)
        return torch.pow(high + ramp * (low - high), config.rho)
