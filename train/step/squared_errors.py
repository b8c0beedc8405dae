"""Squared errors of predictions, for a model that runs as a whole on this process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from train.models.denoiser import Denoiser
from train.models.precision import at_least_float32


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
    """

    inputs: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    timestep_input: torch.Tensor
    context: torch.Tensor
    mask: torch.Tensor
    packed: bool


class SquaredErrors(Protocol):
    """Function that runs a model and returns its squared errors."""

    def __call__(self, dit: Denoiser, asked: DenoisingInputs) -> torch.Tensor:
        """Return each sample's mean squared error, at least float32 [B]."""


def whole_model_errors(dit: Denoiser, asked: DenoisingInputs) -> torch.Tensor:
    """Return each sample's mean squared error, with all tokens on this process."""
    conditions = (asked.timestep_input, asked.context, asked.mask)
    if asked.packed:
        packed = dit.forward_packed([x_1CTHW[0] for x_1CTHW in asked.inputs], *conditions)
        predictions = [prediction_CTHW[None] for prediction_CTHW in packed]
    else:
        [x_BCTHW] = asked.inputs
        predictions = [dit(x_BCTHW, *conditions)]
    squares = (
        (at_least_float32(prediction) - target).square()
        for prediction, target in zip(predictions, asked.targets, strict=True)
    )
    return torch.cat([square.flatten(1).mean(dim=1) for square in squares])
