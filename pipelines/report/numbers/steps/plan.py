"""Numbers of a cluster's steps: the policies side by side, and what is recommended."""

from collections.abc import Callable, Sequence
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import BudgetsT
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.report.numbers.steps.policies import side_by_side
from reelweave.pipelines.report.numbers.steps.recommendation import recommend
from reelweave.pipelines.report.steps_config import StepsConfig


def plan_numbers(
    make: Callable[[BudgetsT], Mixture], budgets: BudgetsT, steps: StepsConfig, lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the figures of every policy, and a recommendation, as plain values.

    Args:
        make: function from budgets to the mixture.
        budgets: limits of a microbatch.
        steps: cluster and steps.
        lengths: S of the buckets that hold samples.

    Returns:
        What was asked for; ``policies`` by name, each with its ``relative_throughput``, that of `equal_token` being 1;
        ``recommendation``; ``cannot``: why there is neither, or None.
    """
    request = {**steps.model_dump(), "steps": steps.count, "cost": budgets.counted_cost.model_dump()}
    try:
        results = side_by_side(make(budgets), steps)
    except UsageError as error:
        return {**request, "policies": {}, "recommendation": None, "cannot": str(error)}
    base = results["equal_token"].throughput
    return {
        **request,
        "policies": {
            policy: {**result.to_json(), "relative_throughput": result.throughput / base}
            for policy, result in results.items()
        },
        "recommendation": recommend(make, budgets, steps, lengths, results["balanced"]),
        "cannot": None,
    }
