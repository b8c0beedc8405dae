"""Policies: from a stream of microbatches to steps in which every rank has its share."""

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from loader.balance import balanced
from loader.buckets import Budgets
from loader.cost import Cost, PowerCost

Policy = Literal["equal_token", "dual_constraint", "same_bucket", "balanced"]
"""equal_token: as many tokens in every microbatch, dealt to the ranks in order. dual_constraint: B by memory and
compute (AdaptiveLoad, equation 2), dealt in order. same_bucket: the same B, and in a slot one bucket for all ranks.
balanced: the same B, and the microbatches of a step placed so that the ranks have equal work."""

Regime = Literal["step", "slot"]
"""When ranks wait for each other: once a step (DDP, ZeRO-1/2), or after every microbatch (FSDP, pipelines)."""

POLICIES: tuple[Policy, ...] = get_args(Policy)

BudgetsT = TypeVar("BudgetsT", bound=Budgets)
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """How a step is divided.

    Attributes:
        ranks: data-parallel.
        microbatches: of a rank in a step, on average.
        policy: who runs what.
        cost: what a microbatch costs.
    """

    ranks: int
    microbatches: int = 1
    policy: Policy = "balanced"
    cost: Cost = PowerCost()  # noqa: RUF009 - frozen

    @property
    def per_step(self) -> int:
        """Microbatches of a step, on all ranks."""
        return self.ranks * self.microbatches


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


def place(policy: Policy, costs: Floats, ranks: int) -> Placement:
    """Places the microbatches of one step, ranks x m of them, where ranks wait for each other once a step.

    Args:
        policy: who decides.
        costs: float64 [M], in the order of the stream.
        ranks: of the step.
    """
    # One for each rank is balanced already, or cannot be.
    if policy != "balanced" or len(costs) == ranks:
        return in_order(len(costs), ranks)
    number = np.arange(len(costs))
    rank = balanced(costs, ranks)
    order = np.lexsort((number, -costs, rank))
    first = np.searchsorted(rank[order], np.arange(ranks))
    slot = np.empty(len(costs), np.int64)
    slot[order] = number - first[rank[order]]
    return Placement(rank, slot, ranks)


def in_order(count: int, ranks: int, regime: Regime = "step") -> Placement:
    """Microbatches dealt to the ranks as they come."""
    number = np.arange(count)
    return Placement(number % ranks, number // ranks, ranks, regime)
