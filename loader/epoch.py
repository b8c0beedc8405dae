"""The steps of a dataset's epochs, as training plans them, with what a report measures of each."""

import time
from collections.abc import Iterator

import numpy as np

from loader.arrays import Places
from loader.buckets import Assignment
from loader.dataset.plan_index import PlanIndex
from loader.microbatches import Microbatches
from loader.plan import EpochPlan, plan_epoch
from loader.policy import Division
from loader.simulate import PlannedStep


def dataset_steps(
    index: PlanIndex, assignment: Assignment, max_text_tokens: int, seed: int, division: Division, steps: int
) -> Iterator[tuple[PlannedStep, float]]:
    """The first steps of a dataset, epoch after epoch, and the seconds that placing each took.

    Args:
        index: of the dataset.
        assignment: each row's bucket.
        max_text_tokens: longer captions are cut.
        seed: of the stream, 0 to 2^64 - 1.
        division: of a step over the ranks.
        steps: how many.

    Raises:
        UsageError: there are fewer samples in buckets than microbatches in a step.
    """
    text_N = np.minimum(index.text_tokens, max_text_tokens)
    epoch, first = 0, 0
    while first < steps:
        plan = plan_epoch(assignment, seed, epoch, division)
        for number in range(min(len(plan), steps - first)):
            began = time.perf_counter()
            members, placement = plan.placed(number)
            spent_s = time.perf_counter() - began
            microbatches = _columns(plan, members, assignment, text_N, max_text_tokens)
            yield (
                PlannedStep(first + number, microbatches, plan.costs(plan.runs(members)), placement),
                spent_s,
            )
        epoch, first = epoch + 1, first + len(plan)


def dataset_samples(
    index: PlanIndex, assignment: Assignment, max_text_tokens: int, seed: int, epoch: int
) -> Microbatches:
    """The samples of an epoch one by one, in the order of the stream; arguments as of `dataset_steps`, B is 1."""
    text_N = np.minimum(index.text_tokens, max_text_tokens)
    plan = plan_epoch(assignment, seed, epoch, Division(1))
    return _columns(plan, np.arange(len(plan)), assignment, text_N, max_text_tokens)


def _columns(
    plan: EpochPlan, members: Places, assignment: Assignment, text_N: Places, max_text_tokens: int
) -> Microbatches:
    runs = plan.runs(members)
    batch, length = runs.size, np.array(assignment.lengths)[runs.bucket]
    text = text_N[plan.draws.rows[plan.drawn(members)]]
    return Microbatches(
        bucket=runs.bucket,
        batch=batch,
        length=length,
        tokens=batch * (length - max_text_tokens) + np.add.reduceat(text, np.cumsum(batch) - batch),
        images=np.where(plan.images(runs), batch, 0),
    )
