"""All numbers of a dataset's report, as its page shows them and ``--json`` prints them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from reelweave.loader.blend.selected import SelectedSamples
from reelweave.loader.blend.selection.fields import FieldSummary, index_fields
from reelweave.loader.blend.selection.leakage import Leakage, leakage
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.stats import BucketStats, DatasetStats, dataset_stats
from reelweave.loader.buckets.taking_in import TakingIn, taking_in
from reelweave.loader.dataset import Dataset, StageTotal
from reelweave.loader.dataset.manifest import Totals
from reelweave.pipelines.plans import mixture
from reelweave.pipelines.report.buckets import ReportConfig
from reelweave.pipelines.report.numbers.bit_rates import BitRates, bit_rates
from reelweave.pipelines.report.numbers.cost_fit import CostFitFigures, cost_fit_numbers
from reelweave.pipelines.report.numbers.curation_run import RunFacts, dataset_notes, run_facts
from reelweave.pipelines.report.numbers.dataset_map import DatasetMap, dataset_map
from reelweave.pipelines.report.numbers.lengths import LengthDistribution, length_distribution
from reelweave.pipelines.report.numbers.outcomes import (
    DuplicateGroups,
    LostSpans,
    Outcomes,
    SourceTotal,
    duplicate_groups,
)
from reelweave.pipelines.report.numbers.recipe import RecipeFigures, recipe_numbers
from reelweave.pipelines.report.numbers.scores import Scores, ScoreStats
from reelweave.pipelines.report.numbers.steps.plan import PlanFigures, plan_numbers
from reelweave.pipelines.report.numbers.vector_map import NEAR
from reelweave.pipelines.report.shapes import kept_timings

MAX_GROUPS = 50


@dataclass(frozen=True)
class DatasetFigures:
    """Numbers of a dataset's report.

    Attributes:
        dataset: URI of the dataset.
        totals: totals of its manifest.
        stages: totals of each state and stage of its accounting.
        lost: spans that were not kept, failures first.
        sources: totals of each source, by name.
        scores: distribution of each score.
        duplicates: kept samples that have copies, and the largest groups.
        map: clusters and outliers of the embeddings.
        run: facts of the last curation run.
        notes: its notes, and what is said of kept clips.
        stats: buckets, tokens and shapes under the report's configuration.
        bit_rates: bit rates of kept clips.
        lengths: distribution of S.
        taking_in: changes that would take in samples without a bucket.
        cost_fit: fit to measured shapes; None without any.
        plan: steps of the cluster; None where none is named, or no sample has a bucket.
        recipe: yields of the recipe that it was made with; None without one.
        selection: what the report's selection draws, in words; "" if buckets count all samples.
        fields: scores and attributes that a selection may name; of a curated dataset attributes alone, beside `scores`.
        leakage: groups on both sides of a split; None where the samples have one side.
        near: clips of val that are nearly clips of train, as JSON values; None without embeddings or two sides.
    """

    dataset: str
    totals: Totals
    stages: list[StageTotal]
    lost: LostSpans
    sources: list[SourceTotal]
    scores: list[ScoreStats]
    duplicates: DuplicateGroups
    map: dict[str, Any]
    run: RunFacts
    notes: list[str]
    stats: DatasetStats
    bit_rates: BitRates
    lengths: LengthDistribution
    taking_in: TakingIn
    cost_fit: CostFitFigures | None
    plan: PlanFigures | None
    recipe: RecipeFigures | None
    selection: str
    fields: list[FieldSummary]
    leakage: Leakage | None
    near: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Return what ``report --json`` prints: the same numbers as JSON values, those of `stats` beside the others."""
        return {
            "dataset": self.dataset,
            "totals": self.totals.model_dump(),
            "stages": [asdict(total) for total in self.stages],
            "lost": asdict(self.lost),
            "sources": [asdict(total) for total in self.sources],
            "scores": [asdict(score) for score in self.scores],
            "duplicates": asdict(self.duplicates),
            "map": self.map,
            "run": self.run.to_json(),
            "notes": self.notes,
            **self.stats.to_dict(),
            "bit_rates": asdict(self.bit_rates),
            "lengths": asdict(self.lengths),
            "taking_in": asdict(self.taking_in),
            "cost_fit": self.cost_fit and self.cost_fit.to_json(),
            "plan": self.plan and self.plan.to_json(),
            "recipe": self.recipe and self.recipe.to_json(),
            "selection": self.selection,
            "fields": [asdict(field) for field in self.fields],
            "leakage": self.leakage and self.leakage.to_json() | {"near": self.near},
        }


def dataset_numbers(
    dataset: Dataset,
    config: ReportConfig,
    mapped: DatasetMap | None = None,
    scores: Scores | None = None,
) -> DatasetFigures:
    """Compute all numbers of a dataset's report.

    Args:
        dataset: dataset; of its clips only embeddings are read.
        config: buckets, and how many rows lists hold; counts beside them are of all rows.
        mapped: map of its embeddings, where it was made before.
        scores: its scores, where they were read before.
    """
    keys = dataset.column("key")
    samples = SelectedSamples.of(dataset, config.selection)
    stats = dataset_stats(
        samples.index, samples.column(keys), config.buckets, samples.column(dataset.column("duration_s"))
    )
    mapped = mapped or dataset_map(dataset, config)
    timings = kept_timings(dataset.storage)
    outcomes = Outcomes.of(dataset, config.max_lost)
    scores = scores or Scores.of(dataset)
    return DatasetFigures(
        dataset=dataset.storage.root,
        totals=dataset.manifest.totals,
        stages=outcomes.stages,
        lost=outcomes.lost,
        sources=outcomes.sources,
        scores=scores.all_stats,
        duplicates=duplicate_groups(dataset, outcomes.copies, MAX_GROUPS),
        map=mapped.to_json(keys),
        run=run_facts(dataset),
        notes=dataset_notes(dataset),
        stats=stats,
        bit_rates=bit_rates(dataset),
        lengths=length_distribution(stats.buckets),
        taking_in=taking_in(samples.index, config.buckets),
        cost_fit=None if timings is None else cost_fit_numbers(timings, config.buckets),
        plan=_plan(dataset.storage.root, samples.source, config, stats.buckets),
        recipe=recipe_numbers(dataset, scores, outcomes.stages),
        selection=samples.sentence,
        fields=[
            field
            for field in index_fields(dataset)
            if field.home == "attributes" or dataset.manifest.foreign is not None
        ],
        leakage=leakage(dataset, config.split, config.groups),
        near=_near(mapped, keys),
    )


def _near(mapped: DatasetMap, keys: pa.ChunkedArray) -> dict[str, Any] | None:
    """Return clips of val that are nearly clips of train, by their keys."""
    if mapped.near is None:
        return None
    key_of = [keys[int(row)].as_py() for row in mapped.row_M] if mapped.near.pairs else []
    pairs = [
        {"val": key_of[val], "train": key_of[train], "cosine": cosine}
        for val, train, cosine in mapped.near.pairs
    ]
    return {**asdict(mapped.near), "cosine": NEAR, "pairs": pairs}


def _plan(
    name: str, source: SampleSource, config: ReportConfig, buckets: Sequence[BucketStats]
) -> PlanFigures | None:
    """Return what the steps of the cluster come to, None where none is named or no sample has a bucket."""
    if config.plan is None or not buckets:
        return None
    steps = config.plan

    def make(budgets: BucketConfig) -> mixture.Mixture:
        return mixture.dataset(name, source, budgets, steps.seed)

    return plan_numbers(make, config.buckets, steps, [bucket.length for bucket in buckets])
