"""Squared errors of predictions, for a model that runs as a whole on this process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.precision.float32 import at_least_float32


class DenoisingInputs(NamedTuple):
    """Model inputs and regression targets of B samples.

    Attributes:
        inputs: noisy latents [B, C, T, H, W], and condition channels behind them; for packed samples one [1, C, T, H,
            W] each.
        targets: regression targets, like the noisy latents.
        timestep_input: timestep input of the objective, [B].
        context: text embeddings, [B, M, D].
        mask: True for valid text tokens, bool [B, M].
        packed: True if the samples run as one sequence.
        host_mask: the mask on the CPU; None: it is read from the device where it is needed.
    """

    inputs: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    timestep_input: torch.Tensor
    context: torch.Tensor
    mask: torch.Tensor
    packed: bool
    host_mask: torch.Tensor | None = None

    @property
    def known_mask(self) -> torch.Tensor:
        """Mask whose values the host can read without waiting, if there is one."""
        return self.mask if self.host_mask is None else self.host_mask

    @property
    def padding_mask(self) -> torch.Tensor | None:
        """The mask; None where the host knows that no text is padded, for which attention has faster kernels."""
        return None if self.host_mask is not None and bool(self.host_mask.all()) else self.mask


class SquaredErrors(Protocol):
    """Function that runs a model and returns its squared errors."""

    def __call__(self, dit: Denoiser, inputs: DenoisingInputs) -> torch.Tensor:
        """Return each sample's mean squared error, at least float32 [B]."""


def whole_model_errors(dit: Denoiser, inputs: DenoisingInputs) -> torch.Tensor:
    """Return each sample's mean squared error, with all tokens on this process."""
    conditions = (inputs.timestep_input, inputs.context)
    if inputs.packed:
        latents = [x_1CTHW[0] for x_1CTHW in inputs.inputs]
        packed = dit.forward_packed(latents, *conditions, inputs.known_mask)
        predictions = [prediction_CTHW[None] for prediction_CTHW in packed]
    else:
        [x_BCTHW] = inputs.inputs
        predictions = [dit(x_BCTHW, *conditions, inputs.padding_mask)]
    squares = (
        (at_least_float32(prediction) - target).square()
        for prediction, target in zip(predictions, inputs.targets, strict=True)
    )
    return torch.cat([square.flatten(1).mean(dim=1) for square in squares])
