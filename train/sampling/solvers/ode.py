"""ODE solvers of the probability flow, from noise to a clean latent, for every objective.

With the estimates of clean latent and noise in x (`train.objectives.level.solve`), the flow is dx = x_0
d(signal) + eps d(noise). For flow matching that is dx = v dt, for EDM dx = (x - D) / sigma d(sigma), and an
Euler step for DDPM is DDIM (Song et al. 2021, eq. 12 with no added noise).
"""

from collections.abc import Callable, Sequence

import torch

from train.sampling.config import Solver

Estimate = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""Estimator of clean latent and noise from x at a point of the schedule."""


def sample(
    estimate: Estimate,
    x: torch.Tensor,
    points: Sequence[tuple[float, float]],
    solver: Solver,
    progress: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Return the clean latent at the end of the flow through ``x``.

    Args:
        estimate: estimator, called with x and the index of a point, from 0.
        x: state at the first point.
        points: (signal, noise), from most noise to least; the final point (1, 0) follows without an evaluation.
        solver: euler: order 1, one evaluation per step; heun: order 2, two per step, one in the last (Karras et
            al. 2022, algorithm 1, without churn; for DDPM, the trapezoidal rule over both signal and noise).
        progress: called after each step.
    """
    for number, (signal, noise) in enumerate(points):
        last = number + 1 == len(points)
        next_signal, next_noise = (1.0, 0.0) if last else points[number + 1]
        d_signal, d_noise = next_signal - signal, next_noise - noise
        clean, eps = estimate(x, number)
        ahead = x + d_signal * clean + d_noise * eps
        if solver == "heun" and not last:
            next_clean, next_eps = estimate(ahead, number + 1)
            ahead = x + d_signal * (clean + next_clean) / 2 + d_noise * (eps + next_eps) / 2
        x = ahead
        progress()
    return x
