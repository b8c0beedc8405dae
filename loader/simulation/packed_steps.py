"""Simulated steps of a packed plan, without reading samples."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.balance import least_load
from reelweave.loader.plan.microbatches import Microbatches, together
from reelweave.loader.plan.packing import CARRIED, PackSizes, balanced_packs, num_taken, packs_in_order
from reelweave.loader.plan.policy import Placement, Policy
from reelweave.loader.simulation.plan_metrics import idle, plan_metrics, step_metrics
from reelweave.loader.simulation.simulate import COST_ERRORS, PlannedStep, SimulatedPlan

PACK_POLICIES: tuple[Policy, ...] = ("equal_token", "balanced")
"""equal_token: packs filled in stream order. balanced: packs of equal cost."""


@dataclass(frozen=True, eq=False)
class PackedStep:
    """Packs of one simulated step.

    Attributes:
        planned: samples of the step, as microbatches of B = 1 with unpadded S; rank and slot identify the pack. Costs
            include each sample's share of the fixed cost of its pack.
        carried: number of samples that fit into no pack and begin the next step; a mean over the epoch if it was
            planned at once.
        fill: used share of the token budget.
        alone: number of samples longer than the token budget, each in a pack of its own.
        idle_floor: lower bound of the idle share, see `PlannedStepMetrics`.
    """

    planned: PlannedStep
    carried: float
    fill: float
    alone: int
    idle_floor: float


@dataclass(frozen=True)
class SimulatedPacks(SimulatedPlan):
    """Metrics of a simulated packed plan; cost errors apply to whole packs.

    Attributes:
        idle_slot: mean idle share with synchronization after every pack.
        fill: mean used share of the token budget.
        carried: share of the samples that wait for one step because they fit into no pack.
        alone: number of samples longer than the token budget.
    """

    idle_slot: float
    fill: float
    carried: float
    alone: int


def packed_steps(
    epochs: Callable[[int], Microbatches],
    policy: Policy,
    cost: Cost,
    budgets: Budgets,
    ranks: int,
    packs: int,
    steps: int,
) -> Iterator[tuple[PackedStep, float]]:
    """Yield the steps, each with the seconds spent on planning it; steps may span two epochs.

    Args:
        epochs: function from epoch number to its samples, as microbatches of B = 1 in stream order.
        policy: one of ``PACK_POLICIES``.
        cost: cost model; a pack costs ``fixed_s`` and the cost of its samples.
        budgets: ``memory_tokens`` bounds a pack; under `balanced` the cost limit bounds the mean cost of packs.
        ranks: number of data-parallel ranks.
        packs: number of packs per rank and step.
        steps: number of steps.

    Raises:
        UsageError: a step needs more samples than an epoch has.
    """
    sizes = PackSizes(ranks, packs, budgets.memory_tokens)
    waiting, read, carried = _own_lengths(epochs(0)), 1, 0
    held = len(waiting)
    for step in range(steps):
        # Read on until a step is full; an epoch that two times over fills none is too small.
        while sizes.sizes(waiting.length).sum() < sizes.per_step * sizes.tokens:
            if len(waiting) >= 2 * held:
                raise UsageError(_TOO_SMALL.format(held=held, ranks=ranks, packs=packs, tokens=sizes.tokens))
            waiting, read = together([waiting, _own_lengths(epochs(read))]), read + 1
        # Only planning is timed.
        began = time.perf_counter()
        if policy == "equal_token":
            pack_N = packs_in_order(waiting.length, sizes)
        else:
            pack_N = _balance_packs(waiting.length, cost, budgets, sizes, carried)
        spent_s = time.perf_counter() - began
        if len(pack_N) > held:
            raise UsageError(_TOO_SMALL.format(held=held, ranks=ranks, packs=packs, tokens=sizes.tokens))
        # Samples that fit no pack of this step are the first of the next.
        late = np.flatnonzero(pack_N == CARRIED)
        carried = len(late)
        is_packed = pack_N != CARRIED
        samples = waiting.where(slice(len(pack_N))).where(is_packed)
        yield packed_step(step, samples, pack_N[is_packed], cost, sizes, carried), spent_s
        waiting = together([waiting.where(late), waiting.where(slice(len(pack_N), None))])


def simulate_packs(
    steps: Iterator[tuple[PackedStep, float]], keep: Callable[[PlannedStep], None] = lambda _: None
) -> SimulatedPacks:
    """Compute metrics of packed steps.

    Args:
        steps: steps of `packed_steps`, at least one.
        keep: callback for every step.
    """
    metrics, spent_s, slot_idle, fill = [], [], [], []
    carried, alone = 0.0, 0
    off: dict[float, list[float]] = {error: [] for error in COST_ERRORS}
    for step, seconds_spent in steps:
        costs, placement = step.planned.costs, step.planned.placement
        keep(step.planned)
        spent_s.append(seconds_spent)
        # Each step as planned, and with a synchronization for each slot.
        measured = step_metrics(step.planned.microbatches, costs, placement)
        metrics.append(replace(measured, idle_floor=step.idle_floor))
        slot_idle.append(idle(costs, replace(placement, regime="slot")))
        fill.append(step.fill)
        carried, alone = carried + step.carried, alone + step.alone
        # The same step with costs that were estimated wrongly, by the same errors in every run.
        pack = placement.slot * placement.ranks + placement.rank
        normal = np.random.Generator(np.random.Philox(step.planned.number)).standard_normal(pack.max() + 1)
        for error, idle_shares in off.items():
            idle_shares.append(idle(costs * np.maximum(0.0, 1 + error * normal[pack]), placement))
    return SimulatedPacks(
        metrics=plan_metrics(metrics),
        plan_ms_per_step=float(np.mean(spent_s)) * 1000,
        idle_with_error={error: float(np.mean(idle_shares)) for error, idle_shares in off.items()},
        idle_slot=float(np.mean(slot_idle)),
        fill=float(np.mean(fill)),
        carried=carried / sum(step.samples for step in metrics),
        alone=alone,
    )


_TOO_SMALL = (
    "an epoch of {held} samples is too short for a step of {ranks} ranks x {packs} packs of up to {tokens} tokens;"
    " use fewer ranks or packs"
)


def _own_lengths(samples: Microbatches) -> Microbatches:
    """Return samples whose padded length is their own, since packs are not padded."""
    return replace(samples, length=samples.tokens)


def _balance_packs(
    waiting_N: NDArray[np.int64], cost: Cost, budgets: Budgets, sizes: PackSizes, carried: int
) -> NDArray[np.int64]:
    counted, limit = budgets.counted_cost, budgets.cost_limit
    limit = None if limit is None else limit - counted.fixed_s
    lengths = waiting_N[: num_taken(waiting_N, counted.sample_s(waiting_N), sizes, limit)]
    return balanced_packs(lengths, cost.sample_s(lengths), sizes, carried)


def packed_step(
    step: int, samples: Microbatches, pack: IndexArray, cost: Cost, sizes: PackSizes, carried: float
) -> PackedStep:
    """Return one step with its costs, placement and fill.

    Args:
        step: number of the step.
        samples: microbatches of B = 1 with unpadded S.
        pack: int64 [N], slot * ranks + rank of each sample.
        cost: cost model.
        sizes: number and size of the packs.
        carried: number of carried samples, see `PackedStep`.
    """
    together_with = np.bincount(pack, minlength=sizes.per_step)[pack]
    sample_costs = cost.sample_s(samples.length)
    costs = sample_costs + cost.fixed_s / together_with
    # Under every plan a rank pays fixed_s for each of its packs.
    floor = sizes.packs * cost.fixed_s + least_load(sample_costs, sizes.ranks)
    placement = Placement(pack % sizes.ranks, pack // sizes.ranks, sizes.ranks)
    return PackedStep(
        planned=PlannedStep(step, samples, costs, placement),
        carried=carried,
        fill=float(sizes.sizes(samples.length).sum()) / (sizes.per_step * sizes.tokens),
        alone=int((samples.length > sizes.tokens).sum()),
        idle_floor=max(0.0, 1 - float(costs.sum() / sizes.ranks / floor)),
    )
