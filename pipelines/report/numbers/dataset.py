"""All numbers of a dataset's report, as its page shows them and ``--json`` prints them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.stats import dataset_stats
from reelweave.loader.buckets.taking_in import taking_in
from reelweave.loader.dataset import Dataset
from reelweave.pipelines.plans import mixture
from reelweave.pipelines.report.buckets import ReportConfig
from reelweave.pipelines.report.numbers.cost_fit import cost_fit_numbers
from reelweave.pipelines.report.numbers.curation_run import run_facts, run_notes
from reelweave.pipelines.report.numbers.dataset_map import DatasetMap, dataset_map
from reelweave.pipelines.report.numbers.lengths import length_distribution
from reelweave.pipelines.report.numbers.outcomes import Outcomes, duplicate_groups
from reelweave.pipelines.report.numbers.scores import Scores
from reelweave.pipelines.report.numbers.steps.plan import plan_numbers
from reelweave.pipelines.report.shapes import kept_timings

MAX_GROUPS = 50


def dataset_numbers(
    dataset: Dataset,
    config: ReportConfig,
    mapped: DatasetMap | None = None,
    scores: Scores | None = None,
) -> dict[str, Any]:
    """Return the numbers as plain values.

    Args:
        dataset: dataset; of its clips only embeddings are read.
        config: buckets, and how many rows lists hold; counts beside them are of all rows.
        mapped: map of its embeddings, where it was made before.
        scores: its scores, where they were read before.
    """
    keys = dataset.column("key")
    stats = dataset_stats(dataset.plan_index, keys, config.buckets, dataset.column("duration_s")).to_dict()
    mapped = mapped or dataset_map(dataset, config)
    timings = kept_timings(dataset.storage)
    outcomes = Outcomes.of(dataset, config.max_lost)
    return {
        "dataset": dataset.storage.root,
        "totals": dataset.manifest.totals.model_dump(),
        "stages": [asdict(total) for total in outcomes.stages],
        "lost": outcomes.lost,
        "sources": [asdict(total) for total in outcomes.sources],
        "scores": [asdict(stats) for stats in (scores or Scores.of(dataset)).all_stats],
        "duplicates": duplicate_groups(dataset, outcomes.copies, MAX_GROUPS),
        "map": mapped.to_json(keys),
        "run": run_facts(dataset),
        "notes": run_notes(dataset),
        **stats,
        "lengths": length_distribution(stats["buckets"]),
        "taking_in": taking_in(dataset.plan_index, config.buckets),
        "cost_fit": None if timings is None else cost_fit_numbers(timings, config.buckets),
        "plan": _plan(dataset, config, stats["buckets"]),
    }


def _plan(
    dataset: Dataset, config: ReportConfig, buckets: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what the steps of the cluster come to, None where none is named or no sample has a bucket."""
    if config.plan is None or not buckets:
        return None
    steps = config.plan

    def make(budgets: BucketConfig) -> mixture.Mixture:
        return mixture.dataset(dataset.storage.root, dataset, budgets, steps.seed)

    return plan_numbers(make, config.buckets, steps, [bucket["length"] for bucket in buckets])
