"""Points of a schedule, and what solvers ask at them."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

EstimateFn = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""Estimator of clean latent and noise from x at a point of the schedule."""


class Point(NamedTuple):
    """Point of a schedule, at which x = signal * x_0 + noise * eps.

    Attributes:
        signal: coefficient of the clean latent.
        noise: coefficient of the standard normal noise.
    """

    signal: float
    noise: float

    @property
    def log_snr(self) -> float:
        """Half the logarithm of the signal-to-noise ratio; infinite at noise alone and without noise."""
        if self.signal == 0 or self.noise == 0:
            return -math.inf if self.signal == 0 else math.inf
        return math.log(self.signal / self.noise)


CLEAN = Point(1.0, 0.0)
"""End of every schedule."""


class Stepper(Protocol):
    """Solver of one flow; multistep solvers keep what they have seen."""

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Return the state at the next point, given that at a point; called once for every point in order."""
