"""Simulated steps of a stream under a policy, without reading samples."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from reelweave.loader.base.arrays import Floats
from reelweave.loader.buckets.cost import Cost, seconds
from reelweave.loader.plan.microbatches import Microbatches, together
from reelweave.loader.plan.policy import Placement, StepLayout, place
from reelweave.loader.simulation.plan_metrics import PlanMetrics, idle, plan_metrics, step_metrics

COST_ERRORS = (0.02, 0.05, 0.10)
"""Standard deviations of the relative cost error for which idle shares are computed."""

PLAN_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("step", "rank", "slot", "bucket", "S", "B")] + [("cost", pa.float64())]
)
"""Schema of an exported plan: one row per microbatch."""


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """Microbatches of one step, with their costs and placement."""

    number: int
    microbatches: Microbatches
    costs: Floats
    placement: Placement

    def table(self) -> pa.Table:
        """Return one row per microbatch, by rank and slot: step, rank, slot, bucket, S, B, cost."""
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
class SimulatedPlan:
    """Metrics of a simulated plan.

    Attributes:
        metrics: means over the steps.
        plan_ms_per_step: milliseconds of planning per step, without drawing the stream.
        idle_with_error: mean idle share under random cost errors, by their standard deviation.
    """

    metrics: PlanMetrics
    plan_ms_per_step: float
    idle_with_error: Mapping[float, float]


def planned_steps(
    draw: Callable[[int], Microbatches], layout: StepLayout, cost: Cost, steps: int
) -> Iterator[tuple[PlannedStep, float]]:
    """Yield the steps, each with the seconds spent on its placement.

    Args:
        draw: function from step number to its microbatches, ranks x m of them.
        layout: layout of each step.
        cost: cost model.
        steps: number of steps; the stream continues behind them, since windows are planned whole.
    """
    for first in range(0, steps, layout.window):
        drawn = together([draw(step) for step in range(first, first + layout.window)])
        costs = seconds(cost, drawn.batch, drawn.length)
        began = time.perf_counter()
        placements = place(layout, costs, drawn.batch, drawn.images > 0)
        spent_s = (time.perf_counter() - began) / len(placements)
        for step_index, (members, placement) in enumerate(placements[: steps - first], first):
            yield PlannedStep(step_index, drawn.where(members), costs[members], placement), spent_s


def simulate(
    steps: Iterator[tuple[PlannedStep, float]], keep: Callable[[PlannedStep], None] = lambda _: None
) -> SimulatedPlan:
    """Compute metrics of planned steps.

    Args:
        steps: steps of `planned_steps`, at least one.
        keep: callback for every step.
    """
    metrics, spent_s = [], []
    off: dict[float, list[float]] = {error: [] for error in COST_ERRORS}
    for step, seconds_spent in steps:
        keep(step)
        spent_s.append(seconds_spent)
        metrics.append(step_metrics(step.microbatches, step.costs, step.placement))
        normal = np.random.Generator(np.random.Philox(step.number)).standard_normal(len(step.costs))
        for error, idle_shares in off.items():
            idle_shares.append(idle(step.costs * np.maximum(0.0, 1 + error * normal), step.placement))
    return SimulatedPlan(
        metrics=plan_metrics(metrics),
        plan_ms_per_step=float(np.mean(spent_s)) * 1000,
        idle_with_error={error: float(np.mean(idle_shares)) for error, idle_shares in off.items()},
    )
