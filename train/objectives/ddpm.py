"""DDPM: discrete noise levels; the model predicts the noise (epsilon) or the velocity v.

Ho et al., "Denoising Diffusion Probabilistic Models", 2020; v: Salimans and Ho, "Progressive Distillation",
2022, appendix D. Values match diffusers' DDPMScheduler.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.objective import DDPMConfig
from reelweave.train.objectives.level import Level, quantile

_LARGEST_BETA = 0.999
_COSINE_OFFSET = 0.008


@dataclass(frozen=True)
class DDPM:
    """Forward process x_n = sqrt(a_n) x_0 + sqrt(1 - a_n) eps with cumulative product a; the time is n, from 0."""

    config: DDPMConfig

    @cached_property
    def products(self) -> torch.Tensor:
        """Cumulative product a of every level, float64 [timesteps]."""
        products = torch.cumprod(1 - betas(self.config), dim=0)
        # a / (1 - a) over s, solved for a; CogVideoX shifts before it rescales.
        products = products / (self.config.snr_shift + (1 - self.config.snr_shift) * products)
        return zero_terminal(products) if self.config.zero_terminal_snr else products

    def time(self, normal: torch.Tensor, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """Return a level, uniformly distributed."""
        count = self.config.timesteps
        return (quantile(normal) * count).floor().clamp(max=count - 1).to(normal.dtype)

    def level(self, times_B: torch.Tensor) -> Level:
        """Return levels whose timestep input is n / timesteps; weights by `min_snr`."""
        config, product = self.config, self.products.to(times_B.device)[times_B.long()]
        signal, noise, ones = product.sqrt(), (1 - product).sqrt(), torch.ones_like(product)
        timestep_input = times_B.double() / config.timesteps
        weight = (
            ones
            if config.min_snr_gamma is None
            else min_snr(product, config.min_snr_gamma, config.prediction)
        )
        if config.prediction == "epsilon":
            return Level(signal, noise, ones, timestep_input, torch.zeros_like(ones), ones, weight)
        return Level(signal, noise, ones, timestep_input, -noise, signal, weight)

    def schedule(self, steps: int, tokens: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """Return evenly spaced levels from the last one on ("trailing", Lin et al. 2024, section 3.3)."""
        count = self.config.timesteps
        if steps > count:
            raise UsageError(
                f"{steps} steps are more than the {count} levels of noise that the model was trained on"
            )
        return torch.arange(steps, 0, -1, dtype=torch.float64).mul(count / steps).round() - 1


def betas(config: DDPMConfig) -> torch.Tensor:
    """Return the variance added at each level, float64 [timesteps]; cosine: Nichol and Dhariwal 2021, eq. 17."""
    count, start, end = config.timesteps, config.beta_start, config.beta_end
    if config.schedule == "linear":
        return torch.linspace(start, end, count, dtype=torch.float64)
    if config.schedule == "scaled_linear":
        return torch.linspace(math.sqrt(start), math.sqrt(end), count, dtype=torch.float64) ** 2
    fraction = torch.arange(count + 1, dtype=torch.float64) / count
    product = torch.cos((fraction + _COSINE_OFFSET) / (1 + _COSINE_OFFSET) * math.pi / 2) ** 2
    return (1 - product[1:] / product[:-1]).clamp(max=_LARGEST_BETA)


def zero_terminal(products: torch.Tensor) -> torch.Tensor:
    """Rescale products to end at 0, with the first fixed (Lin et al., "Common Diffusion Noise Schedules", alg. 1)."""
    roots = products.sqrt()
    return ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2


def min_snr(product: torch.Tensor, gamma: float, prediction: str) -> torch.Tensor:
    """Return the weight that counts errors of x_0 by min(SNR, gamma) (Hang et al., "Min-SNR Weighting", 2023).

    Pure noise (SNR 0) would have weight 0; it gets weight 1, as in diffusers' training scripts.
    """
    snr = product / (1 - product)
    weight = snr.clamp(max=gamma) / (snr if prediction == "epsilon" else snr + 1)
    return torch.where(snr > 0, weight, torch.ones_like(weight))
