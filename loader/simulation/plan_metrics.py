"""Metrics of step plans: load spread, idle time, padding and composition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Floats
from reelweave.loader.plan.balance import least_load
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.plan.policy import Placement


@dataclass(frozen=True)
class PlannedStepMetrics:
    """Balance and composition of one planned step.

    Loads are sums over a rank's microbatches if ranks synchronize once per step. If they synchronize in every slot,
    each slot has its own loads, and spreads are means over the slots.

    Attributes:
        compute_cv: (max - min) / max of the ranks' costs.
        compute_cv_s2: (max - min) / max of the ranks' B*S^2, the load that AdaptiveLoad reports.
        token_cv: (max - min) / max of the ranks' B*S.
        idle: 1 - mean / max of the ranks' costs, with mean and max summed over the slots: the share of the cluster's
            time spent waiting.
        idle_floor: lower bound of `idle` over all placements, from `reelweave.loader.plan.balance.least_load`.
        dearest: maximum cost of a microbatch, or of a sample of a pack, relative to a rank's mean load.
        padding: share of the trained tokens that are padding.
        image_share: share of the samples that are images.
        samples: number of samples of the step.
        tokens: their tokens, without padding.
        span: cost until the last rank is done, summed over the slots where ranks synchronize in each.
    """

    compute_cv: float
    compute_cv_s2: float
    token_cv: float
    idle: float
    idle_floor: float
    dearest: float
    padding: float
    image_share: float
    samples: int
    tokens: int
    span: float


@dataclass(frozen=True)
class PlanMetrics:
    """Means over steps, and the spread of their composition.

    Attributes:
        compute_cv, compute_cv_s2, token_cv, idle, idle_floor, padding: means, see `PlannedStepMetrics`.
        dearest: maximum over the steps, see `PlannedStepMetrics`.
        image_share_std: standard deviation of the image share over the steps.
        samples_std: standard deviation of the samples per step, relative to their mean.
    """

    compute_cv: float
    compute_cv_s2: float
    token_cv: float
    idle: float
    idle_floor: float
    dearest: float
    padding: float
    image_share_std: float
    samples_std: float


def step_metrics(microbatches: Microbatches, costs: Floats, placement: Placement) -> PlannedStepMetrics:
    """Compute the metrics of one step.

    Args:
        microbatches: microbatches of all ranks.
        costs: float64 [M], cost of each microbatch.
        placement: rank and slot of each microbatch.
    """
    trained = microbatches.batch * microbatches.length
    loads = _loads(costs, placement)
    samples = int(microbatches.batch.sum())
    return PlannedStepMetrics(
        compute_cv=_spread(loads),
        compute_cv_s2=_spread(_loads(trained * microbatches.length.astype(np.float64), placement)),
        token_cv=_spread(_loads(trained, placement)),
        idle=idle(costs, placement),
        idle_floor=max(0.0, 1 - float(costs.sum() / placement.ranks / least_load(costs, placement.ranks))),
        dearest=float(costs.max() / costs.sum() * placement.ranks),
        padding=1 - float(microbatches.tokens.sum() / trained.sum()),
        image_share=float(microbatches.images.sum()) / samples,
        samples=samples,
        tokens=int(microbatches.tokens.sum()),
        span=float(loads.max(axis=1).sum()),
    )


def idle(costs: Floats, placement: Placement) -> float:
    """Return the share of the cluster's time spent waiting, see `PlannedStepMetrics`."""
    loads = _loads(costs, placement)
    return 1 - float(loads.mean(axis=1).sum() / loads.max(axis=1).sum())


def plan_metrics(steps: Sequence[PlannedStepMetrics]) -> PlanMetrics:
    """Return means over at least one step."""
    samples = np.array([step.samples for step in steps])

    def mean(name: str) -> float:
        return float(np.mean([getattr(step, name) for step in steps]))

    return PlanMetrics(
        compute_cv=mean("compute_cv"),
        compute_cv_s2=mean("compute_cv_s2"),
        token_cv=mean("token_cv"),
        idle=mean("idle"),
        idle_floor=mean("idle_floor"),
        dearest=max(step.dearest for step in steps),
        padding=mean("padding"),
        image_share_std=float(np.std([step.image_share for step in steps])),
        samples_std=float(samples.std() / samples.mean()),
    )


def _loads(values: NDArray[Any], placement: Placement) -> Floats:
    """Return sums of values [waits, ranks], with one row per step, or one per slot in the slot regime."""
    wait = placement.slot if placement.regime == "slot" else np.zeros_like(placement.slot)
    waits = int(wait.max()) + 1
    sums = np.bincount(wait * placement.ranks + placement.rank, values, minlength=waits * placement.ranks)
    return sums.reshape(waits, placement.ranks).astype(np.float64)


def _spread(loads: Floats) -> float:
    return float(np.mean(1 - loads.min(axis=1) / loads.max(axis=1)))
