"""Numbers of a named workload: its buckets, the distribution of S, and the steps of a cluster."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost_fit import Timings
from reelweave.loader.buckets.stats import BucketStats, bucket_stats
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.settings import Settings
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.pipelines.plans.mixture import workload
from reelweave.pipelines.report.numbers.cost_fit import CostFitFigures, cost_fit_numbers
from reelweave.pipelines.report.numbers.lengths import LengthDistribution, length_distribution
from reelweave.pipelines.report.numbers.steps.plan import PlanFigures, plan_numbers
from reelweave.pipelines.report.steps_config import StepsConfig

SAMPLES = 1_000_000
"""Samples of a workload that its bucket table counts."""


class WorkloadConfig(Settings):
    """Every key of ``reelweave report --workload``."""

    buckets: Budgets
    plan: StepsConfig


@dataclass(frozen=True)
class WorkloadFigures:
    """Numbers of a workload's report.

    Attributes:
        workload: name of the workload.
        about: what it is, in words.
        budgets: limits of a microbatch.
        compression: pixels of a token.
        text_tokens: fewest and most text tokens of a sample.
        buckets: statistics of its buckets.
        lengths: distribution of S.
        cost_fit: fit to measured shapes; None without any.
        plan: steps of the cluster.
    """

    workload: str
    about: str
    budgets: Budgets
    compression: Compression
    text_tokens: tuple[int, int]
    buckets: list[BucketStats]
    lengths: LengthDistribution
    cost_fit: CostFitFigures | None
    plan: PlanFigures

    def to_json(self) -> dict[str, Any]:
        """Return what ``report --workload --json`` prints."""
        return {
            "workload": self.workload,
            "about": self.about,
            "budgets": self.budgets.model_dump(mode="json"),
            "compression": self.compression.model_dump(),
            "text_tokens": list(self.text_tokens),
            "buckets": [asdict(bucket) for bucket in self.buckets],
            "lengths": asdict(self.lengths),
            "cost_fit": self.cost_fit and self.cost_fit.to_json(),
            "plan": self.plan.to_json(),
        }


def workload_numbers(name: str, config: WorkloadConfig, timings: Timings | None = None) -> WorkloadFigures:
    """Compute the numbers; the bucket table is that of `SAMPLES` samples.

    Args:
        name: one of `reelweave.loader.simulation.workloads.WORKLOADS`.
        config: budgets, cluster and steps.
        timings: measured shapes, if any.
    """
    preset, budgets = WORKLOADS[name], config.buckets
    fewest, max_tokens = preset.text_tokens
    # A bucket table as a dataset of so many samples would have it, with captions of evenly spread lengths.
    samples_K = np.rint(np.array(preset.shares) * SAMPLES).astype(np.int64)
    buckets = bucket_stats(
        preset.buckets,
        (preset.visual_tokens() + max_tokens).tolist(),
        preset.batch_sizes(budgets),
        samples_K,
        samples_K * (max_tokens - fewest) / 2,
        np.zeros_like(samples_K),
        budgets,
    )
    seed = config.plan.seed
    return WorkloadFigures(
        workload=name,
        about=preset.about,
        budgets=budgets,
        compression=preset.compression,
        text_tokens=preset.text_tokens,
        buckets=buckets,
        lengths=length_distribution(buckets),
        cost_fit=None if timings is None else cost_fit_numbers(timings, budgets),
        plan=plan_numbers(
            lambda limited: workload(name, seed, limited),
            budgets,
            config.plan,
            [bucket.length for bucket in buckets],
        ),
    )
