"""Numbers of a cluster's steps: the policies side by side, and what is recommended."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reelweave.loader.buckets.cost import Cost
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import BudgetsT, Policy
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.report.numbers.steps.policies import PolicyNumbers, side_by_side
from reelweave.pipelines.report.numbers.steps.recommendation import Recommendation, recommend
from reelweave.pipelines.report.steps_config import StepsConfig


@dataclass(frozen=True)
class PlannedPolicies:
    """Figures of every policy, and a recommendation.

    Attributes:
        by_name: figures by policy.
        recommendation: setting to take.
    """

    by_name: dict[Policy, PolicyNumbers]
    recommendation: Recommendation

    def relative_throughput(self, throughput: float) -> float:
        """Return a throughput over that of `equal_token`."""
        return throughput / self.by_name["equal_token"].throughput


@dataclass(frozen=True)
class PlanFigures:
    """Planned steps of a cluster.

    Attributes:
        steps: cluster and steps.
        cost: cost model of the times.
        planned: figures of the policies; a sentence that says why there are none.
    """

    steps: StepsConfig
    cost: Cost
    planned: PlannedPolicies | str

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, the cluster's at the top."""
        request = {**self.steps.model_dump(), "steps": self.steps.count, "cost": self.cost.model_dump()}
        planned = self.planned
        if isinstance(planned, str):
            return {**request, "policies": {}, "recommendation": None, "cannot": planned}
        return {
            **request,
            "policies": {
                policy: {
                    **numbers.to_json(),
                    "relative_throughput": planned.relative_throughput(numbers.throughput),
                }
                for policy, numbers in planned.by_name.items()
            },
            "recommendation": asdict(planned.recommendation),
            "cannot": None,
        }


def plan_numbers(
    make: Callable[[BudgetsT], Mixture], budgets: BudgetsT, steps: StepsConfig, lengths: Sequence[int]
) -> PlanFigures:
    """Compute the figures of every policy, and a recommendation.

    Args:
        make: function from budgets to the mixture.
        budgets: limits of a microbatch.
        steps: cluster and steps.
        lengths: S of the buckets that hold samples.
    """
    try:
        by_name = side_by_side(make(budgets), steps)
    except UsageError as error:
        return PlanFigures(steps, budgets.counted_cost, str(error))
    advice = recommend(make, budgets, steps, lengths, by_name["balanced"])
    return PlanFigures(steps, budgets.counted_cost, PlannedPolicies(by_name, advice))
