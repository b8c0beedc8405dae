"""Two models of one sampler, each for its side of a time, and the device that may hold one of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reelweave.train.models.denoiser import Denoiser

_SHARE = 0.5
"""Share of a device's memory below which the weights of both experts stay on it."""


def fit_together(models: Sequence[Denoiser], memory_bytes: int) -> bool:
    """Return True if the weights of models leave half of a memory to activations and the decode."""
    weights = (tensor for model in models for tensor in model.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in weights) < _SHARE * memory_bytes


@dataclass(frozen=True, eq=False)
class Experts:
    """Two models for one video, of which the device holds both, or one at a time with the other one on the host.

    Attributes:
        high_noise: model from the boundary on.
        low_noise: model below the boundary.
        boundary: time of flow matching between both.
        device: compute device.
        together: True if the device may hold both.
    """

    high_noise: Denoiser
    low_noise: Denoiser
    boundary: float
    device: torch.device
    together: bool

    @classmethod
    def on(
        cls, high_noise: Denoiser, low_noise: Denoiser, boundary: float, device: torch.device
    ) -> "Experts":
        """Return experts that share a device as its memory allows."""
        together = device.type != "cuda" or fit_together(
            (high_noise, low_noise), torch.cuda.get_device_properties(device).total_memory
        )
        return cls(high_noise, low_noise, boundary, device, together)

    def bring(self, model: Denoiser) -> None:
        """Bring one of the two to the device; unless both may be there, the other one leaves it first."""
        other = self.low_noise if model is self.high_noise else self.high_noise
        if not self.together and _is_on(other, self.device):
            other.to("cpu")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        if not _is_on(model, self.device):
            model.to(self.device)

    @property
    def present(self) -> list[Denoiser]:
        """Experts whose weights are on the device."""
        return [model for model in (self.high_noise, self.low_noise) if _is_on(model, self.device)]


def _is_on(model: Denoiser, device: torch.device) -> bool:
    return next(model.parameters()).device.type == device.type
