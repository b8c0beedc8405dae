"""Policies: the assignment of microbatches to steps, ranks and slots."""

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.plan.balance import balance_costs
from reelweave.loader.plan.slots import assign_slots

Policy = Literal["equal_token", "dual_constraint", "same_bucket", "balanced"]
"""equal_token: equal tokens in every microbatch, dealt to the ranks in order. dual_constraint: B by memory and
compute (AdaptiveLoad, equation 2), dealt in order. same_bucket: the same B, and one bucket per slot for all ranks.
balanced: the same B, and the microbatches of a step assigned so that ranks have equal predicted cost."""

Regime = Literal["step", "slot", "pack"]
"""Synchronization of ranks. step: once per optimizer step (DDP, ZeRO-1/2). slot: after every microbatch (FSDP,
pipelines). pack: samples of mixed shapes packed into sequences of equal cost, which suit both."""

StepDenominator = Literal["epoch", "step"]
"""Divisor of weights: mean samples of the epoch's steps, so that all samples count alike, or samples of the step."""

POLICIES: tuple[Policy, ...] = get_args(Policy)

_WINDOW, _WINDOW_SIZE = 256, 2**21  # maximum size of a window, in steps and in microbatches

BudgetsT = TypeVar("BudgetsT", bound=Budgets)


@dataclass(frozen=True)
class StepLayout:
    """Layout of an optimizer step over the ranks.

    Attributes:
        ranks: number of data-parallel ranks.
        microbatches: mean number of microbatches (or packs) per rank and step.
        policy: assignment of microbatches to ranks.
        regime: synchronization of ranks.
        lookahead: window in steps within which `balanced` may move a microbatch, in the slot regime.
    """

    ranks: int
    microbatches: int = 1
    policy: Policy = "balanced"
    regime: Regime = "step"
    lookahead: int = 1

    @property
    def per_step(self) -> int:
        """Number of microbatches of a step, over all ranks."""
        return self.ranks * self.microbatches

    @property
    def window(self) -> int:
        """Number of steps planned together; large with lookahead, since plans are worse near both ends."""
        if self.regime != "slot" or self.policy != "balanced" or self.lookahead == 1:
            return 1
        return max(self.lookahead, min(_WINDOW, _WINDOW_SIZE // self.per_step))

    @property
    def run(self) -> int:
        """Number of consecutive microbatches from one bucket."""
        return self.ranks if self.policy == "same_bucket" else 1

    def same_steps(self, other: "StepLayout") -> bool:
        """Return whether every step holds the same samples under both, on whichever ranks."""
        return self._steps() == other._steps()

    def _steps(self) -> tuple[object, ...]:
        if self.regime == "pack":
            return self.ranks, self.microbatches, self.policy, self.regime
        ranks = self.ranks if self.regime == "slot" and self.policy == "balanced" else 0
        return self.per_step, self.run, self.window, ranks


@dataclass(frozen=True, eq=False)
class Placement:
    """Assignment of one step's microbatches to ranks and slots.

    Attributes:
        rank: int64 [M], rank of each microbatch.
        slot: int64 [M], place of each microbatch in its rank's order.
        ranks: number of ranks of the step.
        regime: synchronization of ranks.
    """

    rank: IndexArray
    slot: IndexArray
    ranks: int
    regime: Regime = "step"


def budgets_of(policy: Policy, budgets: BudgetsT) -> BudgetsT:
    """Return budgets, or a bucket configuration, reduced to the constraints that a policy uses for B."""
    if policy != "equal_token":
        return budgets
    return budgets.model_copy(update={"compute_budget": None, "target_step_s": None})


def place(
    layout: StepLayout, costs: Floats, samples: IndexArray, images: Flags
) -> list[tuple[IndexArray, Placement]]:
    """Divide the microbatches of a window into steps, and assign them to ranks and slots.

    Args:
        layout: layout of each step.
        costs: float64 [M], in stream order; M is a whole number of steps, at most ``layout.window``.
        samples: int64 [M], B of each microbatch.
        images: bool [M], True for microbatches of images.

    Returns:
        For each step the numbers of its microbatches, int64 [ranks x m], and their placement.
    """
    ranks, steps = layout.ranks, len(costs) // layout.per_step
    if layout.regime == "slot" and layout.policy == "balanced":
        step, rank, slot = assign_slots(costs, samples, images, ranks, steps, layout.lookahead)
        members = [np.flatnonzero(step == index) for index in range(steps)]
        return [
            (members_of_step, Placement(rank[members_of_step], slot[members_of_step], ranks, "slot"))
            for members_of_step in members
        ]
    indices = np.arange(len(costs)).reshape(steps, layout.per_step)
    return [
        (members_of_step, _place_microbatches(layout, costs[members_of_step])) for members_of_step in indices
    ]


def _place_microbatches(layout: StepLayout, costs: Floats) -> Placement:
    ranks, indices = layout.ranks, np.arange(len(costs))
    # One microbatch per rank leaves nothing to balance; packs are balanced when they are made.
    if layout.policy != "balanced" or len(costs) == ranks or layout.regime == "pack":
        return Placement(indices % ranks, indices // ranks, ranks, layout.regime)
    rank = balance_costs(costs, ranks)
    order = np.lexsort((indices, -costs, rank))
    first = np.searchsorted(rank[order], np.arange(ranks))
    slot = np.empty(len(costs), np.int64)
    slot[order] = indices - first[rank[order]]
    return Placement(rank, slot, ranks)
