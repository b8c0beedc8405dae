"""Sampling of distilled weights in a few steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from reelweave.train.sampling.solvers.point import EstimateFn, Point


@dataclass(frozen=True)
class FewStep:
    """Multistep consistency sampling: predict the clean latent, and add new noise of the next level to it.

    Song et al., "Consistency Models", 2023, algorithm 1; used for latent consistency models (LCM) and for
    distribution matching distillation (DMD). A model trained otherwise gives blurred videos in so few steps.

    Attributes:
        estimate: estimator.
        points: points of the schedule, and its end.
        noise: new standard normal noise for a point, by its index.
    """

    estimate: EstimateFn
    points: Sequence[Point]
    noise: Callable[[int], torch.Tensor]

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        clean, _ = self.estimate(x, index)
        end = self.points[index + 1]
        return end.signal * clean + end.noise * self.noise(index + 1) if end.noise else clean
