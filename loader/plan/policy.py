"""Policies: from a stream of microbatches to steps in which every rank has its share."""

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from loader.base.arrays import Flags, Floats, Places
from loader.buckets.buckets import Budgets
from loader.plan.balance import balanced
from loader.plan.slots import slotted

Policy = Literal["equal_token", "dual_constraint", "same_bucket", "balanced"]
"""equal_token: as many tokens in every microbatch, dealt to the ranks in order. dual_constraint: B by memory and
compute (AdaptiveLoad, equation 2), dealt in order. same_bucket: the same B, and in a slot one bucket for all ranks.
balanced: the same B, and the microbatches of a step placed so that the ranks have equal work."""

Regime = Literal["step", "slot", "pack"]
"""When ranks wait for each other: step: once a step (DDP, ZeRO-1/2); slot: after every microbatch (FSDP, pipelines).
pack: samples of any shapes make sequences of equal cost, so that ranks may wait either way."""

POLICIES: tuple[Policy, ...] = get_args(Policy)

_WINDOW, _WINDOW_SIZE = 256, 2**21  # at most, in steps and in microbatches

BudgetsT = TypeVar("BudgetsT", bound=Budgets)


@dataclass(frozen=True)
class Division:
    """How a step is divided.

    Attributes:
        ranks: data-parallel.
        microbatches: of a rank in a step, on average; or its packs.
        policy: who runs what.
        regime: when ranks wait for each other.
        lookahead: in the slot regime, `balanced` may move a microbatch by fewer than this many steps.
    """

    ranks: int
    microbatches: int = 1
    policy: Policy = "balanced"
    regime: Regime = "step"
    lookahead: int = 1

    @property
    def per_step(self) -> int:
        """Microbatches of a step, on all ranks."""
        return self.ranks * self.microbatches

    @property
    def window(self) -> int:
        """Steps that are planned together: with lookahead many, since near both ends planning is worse."""
        if self.regime != "slot" or self.policy != "balanced" or self.lookahead == 1:
            return 1
        return max(self.lookahead, min(_WINDOW, _WINDOW_SIZE // self.per_step))

    @property
    def run(self) -> int:
        """Microbatches in a row that have one bucket."""
        return self.ranks if self.policy == "same_bucket" else 1

    def same_steps(self, other: "Division") -> bool:
        """Whether every step holds the same samples under both, whoever runs them."""
        return self._steps() == other._steps()

    def _steps(self) -> tuple[object, ...]:
        if self.regime == "pack":
            return self.ranks, self.microbatches, self.policy, self.regime
        ranks = self.ranks if self.regime == "slot" and self.policy == "balanced" else 0
        return self.per_step, self.run, self.window, ranks


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the microbatches of one step run.

    Attributes:
        rank: int64 [M].
        slot: int64 [M], its place in the order of the rank's microbatches.
        ranks: of the step.
        regime: when ranks wait for each other.
    """

    rank: Places
    slot: Places
    ranks: int
    regime: Regime = "step"


def budgets_of(policy: Policy, budgets: BudgetsT) -> BudgetsT:
    """The budgets, or a bucket configuration, with what decides B under a policy."""
    if policy != "equal_token":
        return budgets
    return budgets.model_copy(update={"compute_budget": None, "target_step_s": None})


def place(
    division: Division, costs: Floats, samples: Places, images: Flags
) -> list[tuple[Places, Placement]]:
    """Divides the microbatches of a window into its steps, and places them.

    Args:
        division: of each step.
        costs: float64 [M], in the order of the stream; M is whole steps, at most ``division.window`` of them.
        samples: int64 [M], B of each.
        images: bool [M], whether it holds images.

    Returns:
        For each step the numbers of its microbatches, int64 [ranks x m], and where each of them runs.
    """
    ranks, steps = division.ranks, len(costs) // division.per_step
    if division.regime == "slot" and division.policy == "balanced":
        step, rank, slot = slotted(costs, samples, images, ranks, steps, division.lookahead)
        members = [np.flatnonzero(step == number) for number in range(steps)]
        return [(own, Placement(rank[own], slot[own], ranks, "slot")) for own in members]
    numbers = np.arange(len(costs)).reshape(steps, division.per_step)
    return [(own, _placed(division, costs[own])) for own in numbers]


def _placed(division: Division, costs: Floats) -> Placement:
    ranks, number = division.ranks, np.arange(len(costs))
    # One for each rank is balanced already, or cannot be; packs are balanced where they are made.
    if division.policy != "balanced" or len(costs) == ranks or division.regime == "pack":
        return Placement(number % ranks, number // ranks, ranks, division.regime)
    rank = balanced(costs, ranks)
    order = np.lexsort((number, -costs, rank))
    first = np.searchsorted(rank[order], np.arange(ranks))
    slot = np.empty(len(costs), np.int64)
    slot[order] = number - first[rank[order]]
    return Placement(rank, slot, ranks)
