"""Numbers of a named workload: its buckets, the distribution of S, and the steps of a cluster."""

from dataclasses import asdict
from typing import Any

import numpy as np

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost_fit import Timings
from reelweave.loader.buckets.stats import bucket_stats
from reelweave.loader.paper.workloads import WORKLOADS
from reelweave.loader.settings import Settings
from reelweave.pipelines.plans.mixture import workload
from reelweave.pipelines.report.numbers.cost_fit import cost_fit_numbers
from reelweave.pipelines.report.numbers.lengths import length_distribution
from reelweave.pipelines.report.numbers.steps.plan import plan_numbers
from reelweave.pipelines.report.steps_config import StepsConfig

SAMPLES = 1_000_000
"""Samples of a workload that its bucket table counts."""


class WorkloadConfig(Settings):
    """Every key of ``reelweave report --workload``."""

    buckets: Budgets
    plan: StepsConfig


def workload_numbers(name: str, config: WorkloadConfig, timings: Timings | None = None) -> dict[str, Any]:
    """Return the numbers as plain values; the bucket table is that of `SAMPLES` samples.

    Args:
        name: one of `reelweave.loader.paper.workloads.WORKLOADS`.
        config: budgets, cluster and steps.
        timings: measured shapes, if any.
    """
    preset, budgets = WORKLOADS[name], config.buckets
    fewest, max_tokens = preset.text_tokens
    samples_K = np.rint(np.array(preset.shares) * SAMPLES).astype(np.int64)
    buckets = [
        asdict(stats)
        for stats in bucket_stats(
            preset.buckets,
            (preset.visual_tokens() + max_tokens).tolist(),
            preset.batch_sizes(budgets),
            samples_K,
            samples_K * (max_tokens - fewest) / 2,
            np.zeros_like(samples_K),
            budgets,
        )
    ]
    seed = config.plan.seed
    return {
        "workload": name,
        "about": preset.about,
        "budgets": budgets.model_dump(mode="json"),
        "compression": preset.compression.model_dump(),
        "text_tokens": list(preset.text_tokens),
        "buckets": buckets,
        "lengths": length_distribution(buckets),
        "cost_fit": None if timings is None else cost_fit_numbers(timings, budgets),
        "plan": plan_numbers(
            lambda limited: workload(name, seed, limited),
            budgets,
            config.plan,
            [bucket["length"] for bucket in buckets],
        ),
    }
