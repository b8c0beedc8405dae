"""How far predictions are off: what a loss is made of, for a model that this process runs as a whole."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from train.models.denoiser import Denoiser
from train.models.precision import at_least_float32


class Question(NamedTuple):
    """What the model is asked about B samples, and the answer.

    Attributes:
        inputs: noisy latents [B, C, T, H, W]; of packed samples one [1, C, T, H, W] each.
        targets: what is to be predicted; like ``inputs``.
        told: [B], timesteps as the objective gives them.
        context: text embeddings, [B, M, D].
        mask: which of them count, bool [B, M].
        packed: whether the samples run as one sequence.
    """

    inputs: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    told: torch.Tensor
    context: torch.Tensor
    mask: torch.Tensor
    packed: bool


class SquaredErrors(Protocol):
    """Runs a model and compares."""

    def __call__(self, dit: Denoiser, asked: Question) -> torch.Tensor:
        """The mean squared error of each sample over its values, at least float32 [B]."""


def of_whole(dit: Denoiser, asked: Question) -> torch.Tensor:
    """See `SquaredErrors`; the model sees all tokens here."""
    conditions = (asked.told, asked.context, asked.mask)
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
