"""What a plan's steps will idle, and which setting would help: for people, before the first sample is read."""

from dataclasses import dataclass, replace

import numpy as np

from loader.paper.plan_metrics import idle
from loader.plan.balance import least_load
from loader.plan.epoch_plan import EpochPlan
from loader.plan.policy import StepLayout, place

BALANCED_FROM = 4
"""Microbatches of a rank in a step from which a wide mixture of shapes can be balanced."""

WORTH_A_WORD = 0.03
"""Idle time from which a person is told."""

_LOOKAHEAD = 4
_LOOKED_AT = 16_384  # microbatches: 0.1 s at most
_MOST_STEPS = 64


@dataclass(frozen=True)
class IdleForecast:
    """Idle time of the first steps of a plan, by its cost model (`loader.paper.plan_metrics.PlannedStepMetrics.idle`).

    Attributes:
        idle: mean over the steps.
        idle_floor: the same under the best placement that the microbatches of each step allow, at least.
        dearest: largest cost of one microbatch, in mean loads of a rank.
        idle_at_four: mean idle if the same microbatches were planned ``BALANCED_FROM`` to a rank and step.
        idle_in_slots: mean idle if ranks had equally many of them, placed as the slot regime does.
        microbatches: of a rank in a step, on average.
    """

    idle: float
    idle_floor: float
    dearest: float
    idle_at_four: float
    idle_in_slots: float
    microbatches: int

    def advice(self) -> str | None:
        """Return what is lost and what to set, in words; None where it is little or nothing would help."""
        if self.microbatches < BALANCED_FROM and self.idle - self.idle_at_four > WORTH_A_WORD:
            return too_few(self)
        if self.idle_floor > WORTH_A_WORD and self.dearest > 1:
            return heavy_tail(self.idle_floor, self.dearest)
        return None


def too_few(found: IdleForecast) -> str:
    """Return what few microbatches of a rank cost, and what to set, in words."""
    each = "1 microbatch" if found.microbatches == 1 else f"{found.microbatches} microbatches"
    in_slots = (
        f"; regime=slot, which keeps {each} on every rank, to {found.idle_in_slots:.1%}"
        if found.idle - found.idle_in_slots > WORTH_A_WORD
        else ""
    )
    return (
        f"by the cost model ranks wait {found.idle:.1%} of the time, since {each} per rank and step leave too little to"
        f" balance; microbatches={BALANCED_FROM} brings it to {found.idle_at_four:.1%} (accumulate gradients until"
        f" `ends_step`){in_slots}"
    )


def heavy_tail(idle_floor: float, dearest: float) -> str:
    """Return what it means that single microbatches exceed a rank's share of their step, in words."""
    return (
        f"one microbatch costs up to {dearest:.1f} times a rank's share of its step, so that ranks wait"
        f" {idle_floor:.1%} of the time at least, whatever the plan: set more microbatches, fewer frames or smaller"
        " sizes, or let several GPUs share a long sample (parallel.ulysses, parallel.ring, or"
        " parallel.schedule=cascade)"
    )


def forecast_idle(plan: EpochPlan) -> IdleForecast:
    """Measure the first steps of a plan whose ranks wait once a step; a pure function.

    Args:
        plan: in the regime "step" or "pack". Packs are not planned otherwise: their other figures are ``idle``.
    """
    layout, ranks = plan.layout, plan.layout.ranks
    steps = min(max(_LOOKED_AT // layout.per_step, 1), len(plan), _MOST_STEPS)
    idle_S, floor_S, dearest_S = np.zeros((3, steps))
    for step in range(steps):
        members, placement = plan.placed(step)
        costs = plan.costs(members)
        idle_S[step] = idle(costs, placement)
        floor_S[step] = max(0.0, 1 - costs.sum() / ranks / least_load(costs, ranks))
        dearest_S[step] = costs.max() * ranks / costs.sum()
    now = float(idle_S.mean())
    four = replace(layout, microbatches=BALANCED_FROM)
    slots = replace(layout, regime="slot", lookahead=_LOOKAHEAD)
    packed = layout.regime == "pack"
    return IdleForecast(
        idle=now,
        idle_floor=float(floor_S.mean()),
        dearest=float(dearest_S.max()),
        idle_at_four=now if packed else _idle_of(plan, four, steps * layout.per_step),
        idle_in_slots=now if packed else _idle_of(plan, slots, steps * layout.per_step),
        microbatches=layout.microbatches,
    )


def _idle_of(plan: EpochPlan, layout: StepLayout, count: int) -> float:
    """Mean idle of the plan's first ``count`` microbatches divided otherwise; what makes no whole step is left out."""
    steps = min(count // layout.per_step, layout.window if layout.regime == "slot" else count)
    if not steps:
        return 0.0
    members = np.arange(steps * layout.per_step)
    costs = plan.costs(members)
    placed = place(layout, costs, plan.runs(members).size, plan.images(members))
    return float(np.mean([idle(costs[own], placement) for own, placement in placed]))
