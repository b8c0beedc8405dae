"""Policies beside each other at a world size: waiting, throughput, memory and batch sizes, with a series by step."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reelweave.loader.plan.policy import POLICIES, Policy, StepLayout
from reelweave.loader.simulation.packed_steps import PACK_POLICIES
from reelweave.loader.simulation.plan_metrics import (
    PlanMetrics,
    PlannedStepMetrics,
    plan_metrics,
    step_metrics,
)
from reelweave.loader.simulation.simulate import PlannedStep
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.report.steps_config import StepsConfig

_SERIES = ("idle", "compute_cv", "compute_cv_s2", "token_cv", "samples", "tokens", "span")
"""Figures of every step in the JSON."""


@dataclass(frozen=True)
class BatchUse:
    """Microbatches of one bucket in the planned steps.

    Attributes:
        bucket: frames x height x width.
        microbatches: their number.
        least: smallest B.
        mean: mean B.
        most: largest B.
    """

    bucket: str
    microbatches: int
    least: int
    mean: float
    most: int


@dataclass(frozen=True)
class PolicyNumbers:
    """Figures of one policy over the planned steps.

    Attributes:
        metrics: means over the steps.
        throughput: tokens without padding over the sum of the steps' spans. These are tokens per second of
            the cluster where the cost counts seconds, else per unit of B * S^p.
        memory: mean share of M_mem that a microbatch or pack fills.
        memory_most: maximum of it.
        samples: samples per step.
        batches: microbatches by bucket, in the order of the configuration.
        series: figures of each step.
    """

    metrics: PlanMetrics
    throughput: float
    memory: float
    memory_most: float
    samples: float
    batches: list[BatchUse]
    series: list[PlannedStepMetrics]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, the metrics at the top."""
        return {
            **asdict(self.metrics),
            "throughput": self.throughput,
            "memory": self.memory,
            "memory_most": self.memory_most,
            "samples": self.samples,
            "batches": [asdict(use) for use in self.batches],
            "series": {name: [getattr(step, name) for step in self.series] for name in _SERIES},
        }


def policy_numbers(mixture: Mixture, steps: StepsConfig, policy: Policy) -> PolicyNumbers:
    """Plan the first steps of a mixture under one policy, and measure them by the cost model of its budgets.

    Raises:
        UsageError: the mixture cannot fill a step.
    """
    measured: list[PlannedStepMetrics] = []
    used: list[np.ndarray[Any, Any]] = []
    buckets: list[np.ndarray[Any, Any]] = []
    for planned, metrics in _plan_policy(mixture, steps, policy):
        measured.append(metrics)
        used.append(_tokens(planned))
        buckets.append(np.stack([planned.microbatches.bucket, planned.microbatches.batch]))
    memory = np.concatenate(used) / mixture.budgets.memory_tokens
    return PolicyNumbers(
        metrics=plan_metrics(measured),
        throughput=sum(step.tokens for step in measured) / sum(step.span for step in measured),
        memory=float(memory.mean()),
        memory_most=float(memory.max()),
        samples=float(np.mean([step.samples for step in measured])),
        batches=_batches(mixture, np.concatenate(buckets, axis=1)),
        series=measured,
    )


def side_by_side(mixture: Mixture, steps: StepsConfig) -> dict[Policy, PolicyNumbers]:
    """Return the figures of every policy of the regime.

    Raises:
        UsageError: the mixture cannot fill a step.
    """
    policies = PACK_POLICIES if steps.regime == "pack" else POLICIES
    return {policy: policy_numbers(mixture, steps, policy) for policy in policies}


def _plan_policy(
    mixture: Mixture, steps: StepsConfig, policy: Policy
) -> Iterator[tuple[PlannedStep, PlannedStepMetrics]]:
    layout = StepLayout(steps.world_size, steps.microbatches, policy, steps.regime, steps.lookahead)
    cost = mixture.budgets.counted_cost
    if steps.regime == "pack":
        for packed, _ in mixture.packs(layout, cost, steps.count):
            yield packed.planned, replace(_measure_plan(packed.planned), idle_floor=packed.idle_floor)
    else:
        for planned, _ in mixture.steps(layout, cost, steps.count):
            yield planned, _measure_plan(planned)


def _measure_plan(planned: PlannedStep) -> PlannedStepMetrics:
    return step_metrics(planned.microbatches, planned.costs, planned.placement)


def _tokens(planned: PlannedStep) -> np.ndarray[Any, Any]:
    """Return B*S of each microbatch, or the tokens of each pack: what one rank holds in one slot."""
    position = planned.placement.slot * planned.placement.ranks + planned.placement.rank
    tokens = np.bincount(position, planned.microbatches.batch * planned.microbatches.length)
    return tokens[tokens > 0]


def _batches(mixture: Mixture, bucket_and_batch: np.ndarray[Any, Any]) -> list[BatchUse]:
    bucket_M, batch_M = bucket_and_batch
    batch_uses = []
    for bucket_index in np.unique(bucket_M).tolist():
        bucket_batches = batch_M[bucket_M == bucket_index]
        batch_uses.append(
            BatchUse(
                bucket=str(mixture.buckets[bucket_index]),
                microbatches=len(bucket_batches),
                least=int(bucket_batches.min()),
                mean=float(bucket_batches.mean()),
                most=int(bucket_batches.max()),
            )
        )
    return batch_uses
