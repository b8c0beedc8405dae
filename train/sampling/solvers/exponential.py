"""Exponential integrators: multistep solvers, exact in the linear part of the flow; one evaluation per step.

With lambda = log(signal / noise) the flow is x_t = noise_t / noise_s x_s + noise_t int_s^t e^lambda x_0(lambda)
d(lambda). Solvers differ in how x_0 is continued between points. At noise alone lambda is infinite: a step from there
takes x_0 as constant, and later ones do not look back to it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from reelweave.train.sampling.solvers.point import EstimateFn, Point


@dataclass
class RES:
    """Refined exponential solver, multistep, order 2.

    Its phi_1 and phi_2 weights meet the stiff order conditions; "2ab" in NVIDIA's Cosmos. Source: Zhang, Q. et al.,
    "Improved Order Analysis and Design of Exponential Integrator for Diffusion Models Sampling", 2023, section 3.

    Attributes:
        estimate: estimator.
        points: points of the schedule, and its end.
    """

    estimate: EstimateFn
    points: Sequence[Point]
    _before: torch.Tensor | None = field(default=None, init=False)

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        clean, _ = self.estimate(x, index)
        start, end = self.points[index : index + 2]
        h = end.log_snr - start.log_snr
        ahead = _with_constant(x, clean, start, end)
        if self._before is not None and math.isfinite(h):
            back = (self.points[index - 1].log_snr - start.log_snr) / h
            # h phi_2(-h) / c_2, of which phi_1(-h) = (1 - e^-h) / h.
            weight = end.signal * (1 + math.expm1(-h) / h) / back
            ahead = ahead + weight * (self._before - clean)
        self._before = clean
        return ahead


@dataclass
class UniPC:
    """Unified predictor-corrector, multistep: order ``order`` and, by the corrector, one more.

    Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models", 2023,
    algorithms 5 and 6 with B_2(h) = e^h - 1 and predicted x_0. Values are those of diffusers' UniPCMultistepScheduler
    (`bh2`, `lower_order_final`). An evaluation corrects the step that led to it.

    Attributes:
        estimate: estimator.
        points: points of the schedule, and its end.
        order: order p of the predictor, 1 to 3.
    """

    estimate: EstimateFn
    points: Sequence[Point]
    order: int = 2
    _seen: list[torch.Tensor] = field(default_factory=list, init=False)
    _start: torch.Tensor | None = field(default=None, init=False)
    _last_order: int = field(default=1, init=False)

    def step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        clean, _ = self.estimate(x, index)
        if self._start is not None:
            x = self._move(self._start, index - 1, self._last_order, clean)
        self._seen = [*self._seen[1 - self.order or len(self._seen) :], clean]
        self._start = x
        self._last_order = min(self.order, len(self._seen), len(self.points) - 1 - index)
        return self._move(x, index, self._last_order, None)

    def _move(self, x: torch.Tensor, index: int, order: int, arrived: torch.Tensor | None) -> torch.Tensor:
        """Return the state after a step: predicted, or corrected by the clean latent that is seen at its end."""
        start, end = self.points[index : index + 2]
        clean = self._seen[-1]
        ahead = _with_constant(x, clean, start, end)
        back = self.points[index - order + 1 : index][::-1]
        h = end.log_snr - start.log_snr
        # Points of infinite lambda are infinitely far and say nothing of the slope.
        offsets = [(point.log_snr - start.log_snr) / h for point in back if math.isfinite(point.log_snr)]
        differences = [
            (earlier - clean) / offset for offset, earlier in zip(offsets, self._seen[-2::-1], strict=False)
        ]
        halves = order == (2 if arrived is None else 1)
        if arrived is not None:
            offsets.append(1.0)
            differences.append(arrived - clean)
        if not offsets:
            return ahead
        weights = [0.5] if halves else _weights(offsets, h)
        total = sum(weight * difference for weight, difference in zip(weights, differences, strict=True))
        return ahead - end.signal * math.expm1(-h) * total


def _with_constant(x: torch.Tensor, clean: torch.Tensor, start: Point, end: Point) -> torch.Tensor:
    """Return the state after a step with a constant clean latent, which is DDIM's."""
    h = end.log_snr - start.log_snr
    return end.noise / start.noise * x - end.signal * math.expm1(-h) * clean


def _weights(offsets: Sequence[float], h: float) -> list[float]:
    """Return weights of slopes that integrate polynomials exactly (UniPC, eq. 10 and 11, with B_2)."""
    scale = math.expm1(-h)
    phi, factorial, right = scale / -h - 1, 1, []
    for index in range(1, len(offsets) + 1):
        right.append(phi * factorial / scale)
        factorial *= index + 1
        phi = phi / -h - 1 / factorial
    matrix = [[offset**power for offset in offsets] for power in range(len(offsets))]
    return [float(weight) for weight in np.linalg.solve(np.array(matrix), np.array(right))]
