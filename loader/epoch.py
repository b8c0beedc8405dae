"""The steps of a dataset's epochs, as training plans them, with what a report measures of each."""

import time
from collections.abc import Iterator

import numpy as np

from loader.arrays import Places
from loader.buckets import Assignment
from loader.microbatches import Microbatches
from loader.plan import EpochPlan, plan_epoch
from loader.policy import Division
from loader.simulate import PlannedStep


def dataset_steps(
    assignment: Assignment, seed: int, division: Division, steps: int
) -> Iterator[tuple[PlannedStep, float]]:
    """The first steps of a dataset, epoch after epoch, and the seconds that placing each took.

    Args:
        assignment: each row's bucket.
        seed: of the stream, 0 to 2^64 - 1.
        division: of a step over the ranks.
        steps: how many.

    Raises:
        UsageError: there are fewer samples in buckets than microbatches in a step.
    """
    epoch, first = 0, 0
    while first < steps:
        plan = plan_epoch(assignment, seed, epoch, division)
        for number in range(min(len(plan), steps - first)):
            began = time.perf_counter()
            members, placement = plan.placed(number)
            spent_s = time.perf_counter() - began
            planned = PlannedStep(first + number, _columns(plan, members), plan.costs(members), placement)
            yield planned, spent_s
        epoch, first = epoch + 1, first + len(plan)


def dataset_samples(assignment: Assignment, seed: int, epoch: int) -> Microbatches:
    """The samples of an epoch one by one, in the order of the stream; B of every bucket is 1."""
    plan = plan_epoch(assignment, seed, epoch, Division(1))
    return _columns(plan, np.arange(len(plan)))


def _columns(plan: EpochPlan, members: Places) -> Microbatches:
    runs = plan.runs(members)
    own = plan.assignment.own_lengths(plan.draws.rows[plan.drawn(members)])
    return Microbatches(
        bucket=runs.bucket,
        batch=runs.size,
        length=np.array(plan.assignment.lengths)[runs.bucket],
        tokens=np.add.reduceat(own, np.cumsum(runs.size) - runs.size),
        images=np.where(plan.images(members), runs.size, 0),
    )
