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
    """

    rank: Places
    slot: Places
    ranks: int


def budgets_of(policy: Policy, budgets: BudgetsT) -> BudgetsT:
    """The budgets, or a bucket configuration, with what decides B under a policy."""
    return budgets.model_copy(update={"compute_budget": None}) if policy == "equal_token" else budgets


def place(policy: Policy, costs: Floats, ranks: int) -> Placement:
    """Places the microbatches of one step, ranks x m of them.

    Args:
        policy: who decides.
        costs: float64 [M], in the order of the stream.
        ranks: of the step.
    """
    number = np.arange(len(costs))
    # One for each rank is balanced already, or cannot be.
    if policy != "balanced" or len(costs) == ranks:
        return Placement(number % ranks, number // ranks, ranks)
    rank = balanced(costs, ranks)
    order = np.lexsort((number, -costs, rank))
    first = np.searchsorted(rank[order], np.arange(ranks))
    slot = np.empty(len(costs), np.int64)
    slot[order] = number - first[rank[order]]
    return Placement(rank, slot, ranks)
