"""Two models of one sampler, each for its side of a time, and the device that may hold one of them."""

from dataclasses import dataclass
from functools import cached_property

import torch

from train.models.denoiser import Denoiser

_SHARE = 0.5
"""Share of a device's memory below which the weights of both experts stay on it."""


@dataclass(frozen=True, eq=False)
class Experts:
    """Two models for one video, of which a device may hold one at a time.

    The other one waits on the host. Both stay on the device if their weights take less than half of its memory, which
    leaves the other half for activations and the decode.

    Attributes:
        high_noise: model from the boundary on.
        low_noise: model below the boundary.
        boundary: time of flow matching between both.
        device: compute device.
    """

    high_noise: Denoiser
    low_noise: Denoiser
    boundary: float
    device: torch.device

    @cached_property
    def fit_together(self) -> bool:
        """True if both may stay on the device."""
        if self.device.type != "cuda":
            return True
        weights = sum(
            tensor.numel() * tensor.element_size()
            for model in (self.high_noise, self.low_noise)
            for tensor in model.parameters()
        )
        total: int = torch.cuda.get_device_properties(self.device).total_memory
        return weights < _SHARE * total

    def bring(self, model: Denoiser) -> None:
        """Bring one of the two to the device; the other one leaves it first where they do not fit together."""
        other = self.low_noise if model is self.high_noise else self.high_noise
        if not self.fit_together and _is_on(other, self.device):
            other.to("cpu")
            torch.cuda.empty_cache()
        if not _is_on(model, self.device):
            model.to(self.device)

    @property
    def present(self) -> list[Denoiser]:
        """Experts whose weights are on the device."""
        return [model for model in (self.high_noise, self.low_noise) if _is_on(model, self.device)]


def _is_on(model: Denoiser, device: torch.device) -> bool:
    return next(model.parameters()).device.type == device.type
