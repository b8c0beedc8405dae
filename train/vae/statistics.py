"""Moving mean and deviation of latents, which normalize those of a changed encoder."""

import torch

from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.step.ema import decay
from reelweave.train.vae.accumulator import Accumulator
from reelweave.train.vae.reconstruction import Reconstruction

_MEMORY = EmaConfig(decay=0.99)


class LatentStatistics:
    """Moving averages of the first two moments of each channel of the posterior's mean.

    Attributes:
        tensors: mean and square, [C] each; to be read and written in place.
    """

    def __init__(self, channels: int, device: torch.device) -> None:
        self.tensors = {name: torch.zeros(channels, device=device) for name in ("mean", "square")}

    def note(self, share: float, reconstruction: Reconstruction, accumulator: Accumulator) -> None:
        """Add the moments of a microbatch to the sums of its step.

        Args:
            share: share of the step's samples.
            reconstruction: reconstructed samples.
            accumulator: sums over the step.
        """
        x_BCTHW = reconstruction.posterior.mean.detach()
        accumulator.add(
            latent_mean=share * x_BCTHW.mean(dim=(0, 2, 3, 4)),
            latent_square=share * x_BCTHW.square().mean(dim=(0, 2, 3, 4)),
        )

    def update_averages(self, sums: dict[str, torch.Tensor], step: int) -> None:
        """Update the averages by the sums of a whole step, counted from 1."""
        for name, average_C in self.tensors.items():
            average_C.lerp_(sums[f"latent_{name}"].to(average_C), 1 - decay(_MEMORY, step))


def mean_and_deviation(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of each channel, [C] each, from averaged moments."""
    mean_C = tensors["mean"].double()
    return mean_C, (tensors["square"].double() - mean_C.square()).clamp_min(1e-12).sqrt()
