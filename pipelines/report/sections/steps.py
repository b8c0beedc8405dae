"""Steps of a cluster: policies beside each other, their series, and the recommendation."""

from collections.abc import Mapping, Sequence
from typing import Any

from reelweave.loader.buckets.stats import BucketStats
from reelweave.pipelines.report.numbers.steps.recommendation import of_microbatches
from reelweave.pipelines.report.sections.cost_fit import cost_formula
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import lines

_SHARES = {
    "idle": "idle",
    "idle_floor": "idle, any plan",
    "compute_cv": "step CV: predicted time",
    "compute_cv_s2": "compute CV: B*S^2",
    "token_cv": "token CV: B*S",
    "padding": "padding",
    "memory": "memory used of M_mem, mean",
    "memory_most": "memory used of M_mem, most",
    "image_share_std": "image share, spread",
}


def steps_section(plan: Mapping[str, Any] | None, buckets: Sequence[BucketStats]) -> dict[str, Any] | None:
    """Return what `buckets.html` shows of planned steps; None where none are planned.

    Args:
        plan: result of `reelweave.pipelines.report.numbers.steps.plan.plan_numbers`.
        buckets: rows of the bucket statistics.
    """
    if plan is None:
        return None
    each = of_microbatches(plan["microbatches"])
    ranks = "1 rank" if plan["world_size"] == 1 else f"{plan['world_size']:,} ranks"
    title = f"Steps of {ranks} with {each} each"
    wait = "after every microbatch" if plan["regime"] == "slot" else "once a step"
    note = (
        f"The first {plan['steps']:,} steps as training plans them; ranks wait {wait}. Times are those of the cost"
        f" model: {_cost(plan['cost'])}. Throughput counts tokens without padding until the last rank is done."
    )
    if plan["cannot"]:
        return {"title": title, "note": note, "cannot": plan["cannot"]}
    policies, advice = plan["policies"], plan["recommendation"]
    return {
        "title": title,
        "note": note,
        "cannot": None,
        "words": advice["words"],
        "stream_yaml": advice["stream_yaml"],
        "report_yaml": advice["report_yaml"],
        "columns": ("mean over steps", *policies),
        "rows": policy_rows(plan),
        "charts": _charts(policies, buckets),
        "batch_columns": ("bucket", *policies),
        "batch_rows": _batches(policies),
        "tried_columns": ("microbatches", "limit", "idle", "throughput", "samples per step"),
        "tried_rows": [
            (
                tried["microbatches"],
                "none" if tried["limit"] is None else f"{tried['limit']:.4g}",
                f"{tried['idle']:.2%}",
                f"{tried['throughput'] / policies['equal_token']['throughput']:.3f} x",
                round(tried["samples"]),
            )
            for tried in advice["tried"]
        ],
    }


def policy_rows(plan: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the figures of all policies as text, one row each behind its label.

    Args:
        plan: result of `reelweave.pipelines.report.numbers.steps.plan.plan_numbers`, of steps that could be planned.
    """
    policies = plan["policies"].values()
    rows = [(label, *(f"{figures[key]:.2%}" for figures in policies)) for key, label in _SHARES.items()]
    rows.append(
        ("throughput, of equal_token's", *(f"{figures['relative_throughput']:.2f} x" for figures in policies))
    )
    if _in_seconds(plan["cost"]):
        rows.append(("tokens per second", *(f"{figures['throughput']:,.0f}" for figures in policies)))
    rows.append(("samples per step", *(f"{figures['samples']:,.0f}" for figures in policies)))
    return rows


def _charts(policies: Mapping[str, Any], buckets: Sequence[BucketStats]) -> list[Chart]:
    def by_step(name: str) -> dict[str, list[tuple[float, float]]]:
        return {
            policy: [(step, 100 * value) for step, value in enumerate(figures["series"][name])]
            for policy, figures in policies.items()
        }

    base = policies["equal_token"]["throughput"]
    throughput = {
        policy: [
            (step, tokens / span / base)
            for step, (tokens, span) in enumerate(
                zip(figures["series"]["tokens"], figures["series"]["span"], strict=True)
            )
        ]
        for policy, figures in policies.items()
    }
    length = {f"{bucket.frames}x{bucket.height}x{bucket.width}": bucket.length for bucket in buckets}
    sizes = {
        policy: sorted(
            (length[use["bucket"]], use["mean"]) for use in figures["batches"] if use["bucket"] in length
        )
        for policy, figures in policies.items()
    }
    charts = [
        lines("step-idle", "Idle by step", by_step("idle"), "step", "percent"),
        lines(
            "step-compute-cv",
            "Compute CV by step, of B*S^2",
            by_step("compute_cv_s2"),
            "step",
            "percent",
        ),
        lines("step-throughput", "Throughput by step, of equal_token's mean", throughput, "step", "times"),
        lines("step-batches", "Mean B by S", sizes, "S, tokens", "B, samples", log_y=True),
    ]
    if any(figures["compute_cv"] != figures["compute_cv_s2"] for figures in policies.values()):
        time = lines(
            "step-cv", "Step CV by step, of predicted times", by_step("compute_cv"), "step", "percent"
        )
        charts.insert(1, time)
    return charts


def _batches(policies: Mapping[str, Any]) -> list[tuple[str, ...]]:
    batch_sizes: dict[str, dict[str, str]] = {}
    for policy, figures in policies.items():
        for use in figures["batches"]:
            reach = "" if use["least"] == use["most"] else f" ({use['least']} to {use['most']})"
            batch_sizes.setdefault(use["bucket"], {})[policy] = f"{use['mean']:.4g}{reach}"
    return [(bucket, *(of.get(policy, "") for policy in policies)) for bucket, of in batch_sizes.items()]


def _cost(cost: Mapping[str, Any]) -> str:
    if not _in_seconds(cost):
        return f"B*S^{cost['exponent']:g}, no seconds"
    return f"{cost_formula(cost)} seconds"


def _in_seconds(cost: Mapping[str, Any]) -> bool:
    return bool(cost["kind"] != "power" or cost["fixed_s"] != 0 or cost["scale_s"] != 1)
