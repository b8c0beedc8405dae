"""Solvers that step along the probability flow itself.

With the estimates of clean latent and noise in x (`reelweave.train.objectives.level.solve`), the flow is dx = x_0
d(signal) + eps d(noise). For flow matching that is dx = v dt, for EDM dx = (x - D) / sigma d(sigma). An Euler
step for DDPM is DDIM (Song et al. 2021, eq. 12 with no added noise).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reelweave.train.sampling.solvers.point import EstimateFn, Point


@dataclass(frozen=True)
class Euler:
    """Euler's method: order 1, one evaluation per step.

    Attributes:
        estimate: estimator.
        points: points of the schedule, and its end.
    """

    estimate: EstimateFn
    points: Sequence[Point]

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        clean, eps = self.estimate(x, index)
        return self._move(x, index, clean, eps)

    def _move(self, x: torch.Tensor, index: int, clean: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        start, end = self.points[index : index + 2]
        return x + (end.signal - start.signal) * clean + (end.noise - start.noise) * eps


@dataclass(frozen=True)
class Heun(Euler):
    """Heun's method: order 2, two evaluations per step, one in the last.

    Karras et al. 2022, algorithm 1, without churn; for DDPM, the trapezoidal rule over both signal and noise.
    """

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        clean, eps = self.estimate(x, index)
        ahead = self._move(x, index, clean, eps)
        if index + 2 == len(self.points):
            return ahead
        next_clean, next_eps = self.estimate(ahead, index + 1)
        return self._move(x, index, (clean + next_clean) / 2, (eps + next_eps) / 2)
