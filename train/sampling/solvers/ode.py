"""Sampling along a schedule, from noise to a clean latent, with a named solver."""

from collections.abc import Callable, Sequence

import torch

from reelweave.train.sampling.config import Solver
from reelweave.train.sampling.solvers.exponential import RES, UniPC
from reelweave.train.sampling.solvers.few_step import FewStep
from reelweave.train.sampling.solvers.flow import Euler, Heun
from reelweave.train.sampling.solvers.point import CLEAN, EstimateFn, Point, Stepper


def sample(
    estimate: EstimateFn,
    x: torch.Tensor,
    points: Sequence[tuple[float, float]],
    solver: Solver,
    progress: Callable[[], None] = lambda: None,
    noise: Callable[[int], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the clean latent at the end of the flow through ``x``.

    Args:
        estimate: estimator, called with x and the index of a point, from 0.
        x: state at the first point.
        points: (signal, noise), from most noise to least; the final point (1, 0) follows without an evaluation.
        solver: name of the solver.
        progress: called after each step.
        noise: new noise for a point, by its index; needed by few_step.
    """
    stepper = _stepper(solver, estimate, [*(Point(*point) for point in points), CLEAN], noise)
    for index in range(len(points)):
        x = stepper.step(x, index)
        progress()
    return x


def _stepper(
    solver: Solver,
    estimate: EstimateFn,
    points: Sequence[Point],
    noise: Callable[[int], torch.Tensor] | None,
) -> Stepper:
    if solver == "few_step":
        if noise is None:
            raise ValueError("few_step needs new noise for its points")
        return FewStep(estimate, points, noise)
    if solver in ("unipc", "unipc3"):
        return UniPC(estimate, points, 3 if solver == "unipc3" else 2)
    if solver == "res":
        return RES(estimate, points)
    return (Heun if solver == "heun" else Euler)(estimate, points)
