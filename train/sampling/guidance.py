"""Classifier-free guidance: several model passes per step, combined linearly.

Clean latents and noise are linear in predictions, so that guidance is the same for all objectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from train.models.precision import at_least_float32
from train.sampling.predictor import Conditions, ModelRunner, SchedulePoint, Window


def text_weights(guidance: float) -> tuple[float, ...]:
    """Return the weights of the passes with and without caption (Ho and Salimans 2022, eq. 6, w = guidance - 1).

    A scale of 1 needs the pass with the caption alone.
    """
    return (1.0,) if guidance == 1 else (guidance, 1 - guidance)


@dataclass(frozen=True, eq=False)
class Guided:
    """`train.sampling.predictor.Predictor` of a model under guidance.

    Attributes:
        run: model on its ranks.
        passes: conditions of each pass, the fully conditioned one first.
        weights: weight of each pass; they sum to 1.
    """

    run: ModelRunner
    passes: Sequence[Conditions]
    weights: Sequence[float]

    def __call__(
        self, x_BCTHW: torch.Tensor, point: SchedulePoint, window: Window | None = None
    ) -> torch.Tensor:
        B, passes = len(x_BCTHW), len(self.passes)
        conditions = Conditions(*(torch.cat(parts) for parts in zip(*self.passes, strict=True)))
        timestep_input_B = point.level.timestep_input.expand(passes * B)
        scaled_BCTHW = (point.level.scale * x_BCTHW).repeat(passes, 1, 1, 1, 1)
        found_BCTHW = at_least_float32(self.run(scaled_BCTHW, timestep_input_B, conditions, window))
        return combine(torch.split(found_BCTHW, B), self.weights)


def combine(predictions: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted sum of predictions, as the last plus weighted differences to it."""
    *others, last = predictions
    total = last
    for prediction, weight in zip(others, weights, strict=False):
        total = total + weight * (prediction - last)
    return total
