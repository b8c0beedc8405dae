"""Steps of a cluster: policies beside each other, their series, and the recommendation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reelweave.loader.buckets.cost import Cost, PowerCost
from reelweave.loader.buckets.stats import BucketStats
from reelweave.loader.plan.policy import Policy
from reelweave.loader.simulation.plan_metrics import PlannedStepMetrics
from reelweave.pipelines.report.numbers.steps.plan import PlanFigures, PlannedPolicies
from reelweave.pipelines.report.numbers.steps.policies import PolicyNumbers
from reelweave.pipelines.report.numbers.steps.recommendation import of_microbatches
from reelweave.pipelines.report.sections.cost_fit import cost_formula
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import lines

_SHARES: dict[str, Callable[[PolicyNumbers], float]] = {
    "idle": lambda numbers: numbers.metrics.idle,
    "idle, any plan": lambda numbers: numbers.metrics.idle_floor,
    "step CV: predicted time": lambda numbers: numbers.metrics.compute_cv,
    "compute CV: B*S^2": lambda numbers: numbers.metrics.compute_cv_s2,
    "token CV: B*S": lambda numbers: numbers.metrics.token_cv,
    "padding": lambda numbers: numbers.metrics.padding,
    "memory used of M_mem, mean": lambda numbers: numbers.memory,
    "memory used of M_mem, most": lambda numbers: numbers.memory_most,
    "image share, spread": lambda numbers: numbers.metrics.image_share_std,
}


def steps_section(plan: PlanFigures | None, buckets: Sequence[BucketStats]) -> dict[str, Any] | None:
    """Return what `buckets.html` shows of planned steps; None where none are planned.

    Args:
        plan: planned steps.
        buckets: rows of the bucket statistics.
    """
    if plan is None:
        return None
    # What was planned, in words above the tables.
    steps, planned = plan.steps, plan.planned
    each = of_microbatches(steps.microbatches)
    ranks = "1 rank" if steps.world_size == 1 else f"{steps.world_size:,} ranks"
    title = f"Steps of {ranks} with {each} each"
    wait = "after every microbatch" if steps.regime == "slot" else "once a step"
    note = (
        f"The first {steps.count:,} steps as training plans them; ranks wait {wait}. Times are those of the cost"
        f" model: {_cost(plan.cost)}. Throughput counts tokens without padding until the last rank is done."
    )
    if isinstance(planned, str):
        return {"title": title, "note": note, "cannot": planned}
    # Policies beside each other, and the settings that were tried for the advice.
    policies, advice = planned.by_name, planned.recommendation
    return {
        "title": title,
        "note": note,
        "cannot": None,
        "words": advice.words,
        "stream_yaml": advice.stream_yaml,
        "report_yaml": advice.report_yaml,
        "columns": ("mean over steps", *policies),
        "rows": policy_rows(planned, plan.cost),
        "charts": _charts(planned, buckets),
        "batch_columns": ("bucket", *policies),
        "batch_rows": _batches(policies),
        "tried_columns": ("microbatches", "limit", "idle", "throughput", "samples per step"),
        "tried_rows": [
            (
                tried.microbatches,
                "none" if tried.limit is None else f"{tried.limit:.4g}",
                f"{tried.idle:.2%}",
                f"{planned.relative_throughput(tried.throughput):.3f} x",
                round(tried.samples),
            )
            for tried in advice.tried
        ],
    }


def policy_rows(planned: PlannedPolicies, cost: Cost) -> list[tuple[str, ...]]:
    """Return the figures of all policies as text, one row each behind its label."""
    policies = planned.by_name.values()
    rows = [(label, *(f"{share(numbers):.2%}" for numbers in policies)) for label, share in _SHARES.items()]
    relative = [planned.relative_throughput(numbers.throughput) for numbers in policies]
    rows.append(("throughput, of equal_token's", *(f"{times:.2f} x" for times in relative)))
    if _in_seconds(cost):
        rows.append(("tokens per second", *(f"{numbers.throughput:,.0f}" for numbers in policies)))
    rows.append(("samples per step", *(f"{numbers.samples:,.0f}" for numbers in policies)))
    return rows


def _charts(planned: PlannedPolicies, buckets: Sequence[BucketStats]) -> list[Chart]:
    policies = planned.by_name

    def by_step(value: Callable[[PlannedStepMetrics], float]) -> dict[str, list[tuple[float, float]]]:
        return {
            policy: [(index, value(step)) for index, step in enumerate(numbers.series)]
            for policy, numbers in policies.items()
        }

    # Throughput beside the baseline's, and B over S of each policy.
    throughput = by_step(lambda step: planned.relative_throughput(step.tokens / step.span))
    length = {f"{bucket.frames}x{bucket.height}x{bucket.width}": bucket.length for bucket in buckets}
    sizes: dict[str, list[tuple[float, float]]] = {
        policy: sorted((length[use.bucket], use.mean) for use in numbers.batches if use.bucket in length)
        for policy, numbers in policies.items()
    }
    charts = [
        lines("step-idle", "Idle by step", by_step(lambda step: 100 * step.idle), "step", "percent"),
        lines(
            "step-compute-cv",
            "Compute CV by step, of B*S^2",
            by_step(lambda step: 100 * step.compute_cv_s2),
            "step",
            "percent",
        ),
        lines("step-throughput", "Throughput by step, of equal_token's mean", throughput, "step", "times"),
        lines("step-batches", "Mean B by S", sizes, "S, tokens", "B, samples", log_y=True),
    ]
    # Predicted times differ from B*S^2 only under a measured cost.
    if any(numbers.metrics.compute_cv != numbers.metrics.compute_cv_s2 for numbers in policies.values()):
        time = lines(
            "step-cv",
            "Step CV by step, of predicted times",
            by_step(lambda step: 100 * step.compute_cv),
            "step",
            "percent",
        )
        charts.insert(1, time)
    return charts


def _batches(policies: Mapping[Policy, PolicyNumbers]) -> list[tuple[str, ...]]:
    batch_sizes: dict[str, dict[str, str]] = {}
    for policy, numbers in policies.items():
        for use in numbers.batches:
            reach = "" if use.least == use.most else f" ({use.least} to {use.most})"
            batch_sizes.setdefault(use.bucket, {})[policy] = f"{use.mean:.4g}{reach}"
    return [(bucket, *(of.get(policy, "") for policy in policies)) for bucket, of in batch_sizes.items()]


def _cost(cost: Cost) -> str:
    if isinstance(cost, PowerCost) and not _in_seconds(cost):
        return f"B*S^{cost.exponent:g}, no seconds"
    return f"{cost_formula(cost)} seconds"


def _in_seconds(cost: Cost) -> bool:
    return not isinstance(cost, PowerCost) or cost.fixed_s != 0 or cost.scale_s != 1
