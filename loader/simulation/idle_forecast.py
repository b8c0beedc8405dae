"""Forecast of a plan's idle time, with advice on settings, before the first sample is read."""

import math
from dataclasses import dataclass, replace

import numpy as np

from reelweave.loader.plan.balance import least_load
from reelweave.loader.plan.epoch_plan import EpochPlan
from reelweave.loader.plan.policy import StepLayout, place
from reelweave.loader.simulation.plan_metrics import idle

BALANCED_FROM = 4
"""Microbatches per rank and step from which a wide mixture of shapes can be balanced."""

WORTH_A_WORD = 0.03
"""Idle share from which advice is given."""

_LOOKAHEAD = 4
_LOOKED_AT = 16_384  # microbatches examined: 0.1 s at most
_MOST_STEPS = 64


@dataclass(frozen=True)
class IdleForecast:
    """Idle shares of a plan's first steps by its cost model (`reelweave.loader.simulation.plan_metrics`).

    Attributes:
        idle: mean idle share over the steps.
        idle_floor: lower bound of `idle` over all placements of the same microbatches.
        dearest: maximum cost of a microbatch, relative to a rank's mean load.
        idle_at_more: mean idle share with ``more`` microbatches per rank and step.
        idle_in_slots: mean idle share with equally many microbatches per rank, placed by the slot regime.
        microbatches: mean microbatches per rank and step.
        more: ``BALANCED_FROM``, or as many microbatches per rank as the plan has in all, if these are fewer.
    """

    idle: float
    idle_floor: float
    dearest: float
    idle_at_more: float
    idle_in_slots: float
    microbatches: int
    more: int

    def advice(self) -> str | None:
        """Return the loss and the remedy in words; None if the loss is small or no setting helps."""
        if self.microbatches < self.more and self.idle - self.idle_at_more > WORTH_A_WORD:
            return too_few(self)
        if self.idle_floor > WORTH_A_WORD and self.dearest > 1:
            return heavy_tail(self.idle_floor, self.dearest)
        return None


def too_few(forecast: IdleForecast) -> str:
    """Return the cost of few microbatches per rank, and the remedy, in words."""
    each = "1 microbatch" if forecast.microbatches == 1 else f"{forecast.microbatches} microbatches"
    in_slots = (
        f"; regime=slot, which keeps {each} on every rank, to {forecast.idle_in_slots:.1%}"
        if forecast.idle - forecast.idle_in_slots > WORTH_A_WORD
        else ""
    )
    return (
        f"by the cost model ranks wait {forecast.idle:.1%} of the time, since {each} per rank and step leave too little"
        f" to balance; microbatches={forecast.more} brings it to {forecast.idle_at_more:.1%} (accumulate gradients"
        f" until `ends_step`){in_slots}"
    )


def heavy_tail(idle_floor: float, dearest: float) -> str:
    """Return the cost of microbatches above a rank's mean load, and the remedy, in words."""
    return (
        f"one microbatch costs up to {dearest:.1f} times a rank's share of its step, so that ranks wait"
        f" {idle_floor:.1%} of the time at least, whatever the plan: set more microbatches, fewer frames or smaller"
        " sizes, or let several GPUs share a long sample (parallel.ulysses, parallel.ring, or"
        " parallel.schedule=cascade)"
    )


def forecast_idle(plan: EpochPlan) -> IdleForecast:
    """Forecast idle shares from the first steps of a plan with one synchronization per step; a pure function.

    Args:
        plan: plan of the regime "step" or "pack"; for packs the alternatives are not computed and equal ``idle``.
    """
    layout, ranks = plan.layout, plan.layout.ranks
    # As many steps as a mean needs, and no more than take a moment.
    steps = min(
        max(_LOOKED_AT // layout.per_step, math.ceil(BALANCED_FROM / layout.microbatches)),
        len(plan),
        _MOST_STEPS,
    )
    more = min(BALANCED_FROM, max(layout.microbatches, len(plan.turns) // ranks))
    idle_S, floor_S, dearest_S = np.zeros((3, steps))
    for step in range(steps):
        members, placement = plan.place_step(step)
        costs = plan.costs(members)
        idle_S[step] = idle(costs, placement)
        floor_S[step] = max(0.0, 1 - costs.sum() / ranks / least_load(costs, ranks))
        dearest_S[step] = costs.max() * ranks / costs.sum()
    # The same plan with more microbatches, or with a synchronization for each slot.
    now = float(idle_S.mean())
    balanced = replace(layout, microbatches=more)
    slots = replace(layout, regime="slot", lookahead=_LOOKAHEAD)
    packed = layout.regime == "pack"
    return IdleForecast(
        idle=now,
        idle_floor=float(floor_S.mean()),
        dearest=float(dearest_S.max()),
        idle_at_more=now if packed else _idle_of(plan, balanced, steps * layout.per_step),
        idle_in_slots=now if packed else _idle_of(plan, slots, steps * layout.per_step),
        microbatches=layout.microbatches,
        more=more,
    )


def _idle_of(plan: EpochPlan, layout: StepLayout, count: int) -> float:
    """Return the mean idle share of the first ``count`` microbatches under another layout, in whole steps."""
    steps = min(count // layout.per_step, layout.window if layout.regime == "slot" else count)
    if not steps:
        return 0.0
    members = np.arange(steps * layout.per_step)
    costs = plan.costs(members)
    placements = place(layout, costs, plan.runs(members).size, plan.images(members))
    return float(
        np.mean([idle(costs[members_of_step], placement) for members_of_step, placement in placements])
    )
