"""A plan on paper: steps of a stream under a policy, measured without reading a sample."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.cost import Cost, seconds
from loader.microbatches import Microbatches, together
from loader.plan_metrics import PlanMetrics, idle, plan_metrics, step_metrics
from loader.policy import Placement, Policy, Regime, in_order, place
from loader.slots import slotted

COST_ERRORS = (0.02, 0.05, 0.10)
"""Standard deviations of the relative error of a cost, for which the idle time is stated."""

PLAN_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("step", "rank", "slot", "bucket", "S", "B")] + [("cost", pa.float64())]
)
"""Of a plan written down: one row per microbatch."""


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """One step: its microbatches, what they cost and where they run."""

    number: int
    microbatches: Microbatches
    costs: NDArray[np.float64]
    placement: Placement

    def table(self) -> pa.Table:
        """One row per microbatch, by rank and slot: step, rank, slot, bucket, S, B, cost."""
        placement, microbatches = self.placement, self.microbatches
        order = np.lexsort((placement.slot, placement.rank))
        columns = [
            np.full(len(order), self.number),
            placement.rank[order],
            placement.slot[order],
            microbatches.bucket[order],
            microbatches.length[order],
            microbatches.batch[order],
            self.costs[order],
        ]
        return pa.table(columns, schema=PLAN_SCHEMA)


@dataclass(frozen=True)
class Simulated:
    """What came out.

    Attributes:
        metrics: means over the steps.
        plan_ms_per_step: milliseconds of planning, without drawing the stream.
        idle_with_error: mean idle share when costs are really off by a random error, by its standard deviation.
    """

    metrics: PlanMetrics
    plan_ms_per_step: float
    idle_with_error: Mapping[float, float]


def planned_steps(
    draw: Callable[[int], Microbatches],
    policy: Policy,
    cost: Cost,
    ranks: int,
    steps: int,
    *,
    regime: Regime = "step",
    lookahead: int = 1,
) -> Iterator[tuple[PlannedStep, float]]:
    """The steps and the seconds that planning each took.

    Args:
        draw: the microbatches of a step, ranks x m of them.
        policy: who places them.
        cost: model.
        ranks: of the cluster.
        steps: how many.
        regime: when ranks wait for each other.
        lookahead: steps planned together, between which `balanced` may exchange microbatches in the slot regime.
    """
    window = lookahead if regime == "slot" and policy == "balanced" else 1
    for first in range(0, steps, window):
        drawn = [draw(number) for number in range(first, min(first + window, steps))]
        began = time.perf_counter()
        planned = _planned(drawn, policy, cost, ranks, regime)
        spent_s = (time.perf_counter() - began) / len(planned)
        for number, (microbatches, costs, placement) in enumerate(planned, first):
            yield PlannedStep(number, microbatches, costs, placement), spent_s


def _planned(
    drawn: Sequence[Microbatches], policy: Policy, cost: Cost, ranks: int, regime: Regime
) -> list[tuple[Microbatches, NDArray[np.float64], Placement]]:
    window = together(drawn)
    costs = seconds(cost, window.batch, window.length)
    if regime == "slot" and policy == "balanced":
        step, rank, slot = slotted(costs, window.batch, window.images > 0, ranks, len(drawn))
        members = [np.flatnonzero(step == number) for number in range(len(drawn))]
        return [
            (window.where(own), costs[own], Placement(rank[own], slot[own], ranks, regime)) for own in members
        ]
    placement = in_order(len(costs), ranks, regime) if regime == "slot" else place(policy, costs, ranks)
    return [(window, costs, placement)]


def simulate(
    steps: Iterator[tuple[PlannedStep, float]], keep: Callable[[PlannedStep], None] = lambda _: None
) -> Simulated:
    """Measures planned steps.

    Args:
        steps: as `planned_steps` gives them, at least one.
        keep: is shown every step.
    """
    metrics, spent_s = [], []
    off: dict[float, list[float]] = {error: [] for error in COST_ERRORS}
    for step, seconds_spent in steps:
        keep(step)
        spent_s.append(seconds_spent)
        metrics.append(step_metrics(step.microbatches, step.costs, step.placement))
        normal = np.random.Generator(np.random.Philox(step.number)).standard_normal(len(step.costs))
        for error, found in off.items():
            found.append(idle(step.costs * np.maximum(0.0, 1 + error * normal), step.placement))
    return Simulated(
        metrics=plan_metrics(metrics),
        plan_ms_per_step=float(np.mean(spent_s)) * 1000,
        idle_with_error={error: float(np.mean(found)) for error, found in off.items()},
    )
