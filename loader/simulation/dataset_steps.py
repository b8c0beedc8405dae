"""Steps of a dataset's epochs as training plans them, for reports."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.plan.epoch_plan import EpochPlan, plan_epoch
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.plan.packing import PackSizes
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.simulation.packed_steps import PackedStep, packed_step
from reelweave.loader.simulation.simulate import PlannedStep

EpochDraws = Callable[[int], Draws]


def draws_of(source: SampleSource, assignment: Assignment, seed: int) -> EpochDraws:
    """Return a function from epoch number to the draws of a stream of the source."""
    lengths_N = assignment.drawn_lengths() if isinstance(source, Blend) else None
    return lambda epoch: source.draws(epoch, seed, lengths_N)


def dataset_steps(
    assignment: Assignment, draws: EpochDraws, seed: int, layout: StepLayout, steps: int
) -> Iterator[tuple[PlannedStep, float]]:
    """Yield the first steps of a dataset, epoch after epoch, each with the seconds spent on its placement.

    Args:
        assignment: bucket of each row.
        draws: function from epoch number to its draws.
        seed: seed of the stream, 0 to 2^64 - 1.
        layout: layout of a step over the ranks.
        steps: number of steps.

    Raises:
        UsageError: the buckets hold fewer samples than a step has microbatches.
    """
    epoch, first = 0, 0
    while first < steps:
        plan = plan_epoch(assignment, seed, epoch, layout, draws=draws(epoch))
        for step in range(min(len(plan), steps - first)):
            began = time.perf_counter()
            members, placement = plan.place_step(step)
            spent_s = time.perf_counter() - began
            planned = PlannedStep(first + step, _columns(plan, members), plan.costs(members), placement)
            yield planned, spent_s
        epoch, first = epoch + 1, first + len(plan)


def dataset_packs(
    assignment: Assignment, draws: EpochDraws, seed: int, layout: StepLayout, steps: int
) -> Iterator[tuple[PackedStep, float]]:
    """Yield steps of packs like `dataset_steps`; an epoch is planned at once, and its seconds spread over its steps."""
    sizes = PackSizes(layout.ranks, layout.microbatches, assignment.budgets.memory_tokens)
    epoch, first = 0, 0
    while first < steps:
        began = time.perf_counter()
        plan = plan_epoch(assignment, seed, epoch, layout, draws=draws(epoch))
        spent_s = (time.perf_counter() - began) / len(plan)
        for step in range(min(len(plan), steps - first)):
            members, placement = plan.place_step(step)
            pack = np.repeat(placement.slot * layout.ranks + placement.rank, plan.runs(members).size)
            rows = plan.draws.rows[plan.draws_of(members)]
            lengths, alone = assignment.own_lengths(rows), np.ones(len(rows), np.int64)
            bucket = assignment.bucket_of[rows].astype(np.int64)
            image_K = np.array([bucket.frames == 1 for bucket in assignment.buckets])
            samples = Microbatches(bucket, alone, lengths, lengths, image_K[bucket].astype(np.int64))
            carried = plan.carried / len(plan)
            yield packed_step(first + step, samples, pack, assignment.cost, sizes, carried), spent_s
        epoch, first = epoch + 1, first + len(plan)


def _columns(plan: EpochPlan, members: IndexArray) -> Microbatches:
    runs = plan.runs(members)
    lengths = plan.assignment.own_lengths(plan.draws.rows[plan.draws_of(members)])
    return Microbatches(
        bucket=runs.bucket,
        batch=runs.size,
        length=np.array(plan.assignment.lengths)[runs.bucket],
        tokens=np.add.reduceat(lengths, np.cumsum(runs.size) - runs.size),
        images=np.where(plan.images(members), runs.size, 0),
    )
