"""Numbers of microbatches and steps to come, where known in advance."""

from typing import NamedTuple

import numpy as np

from reelweave.loader.errors import NoLengthError
from reelweave.loader.plan.position import Position
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.curriculum_plans import CurriculumPlans


class EpochProgress(NamedTuple):
    """Progress of an epoch in samples and steps.

    Attributes:
        samples_done: number of samples trained on.
        samples_left: number of samples with a bucket that remain.
        steps_left: number of steps that remain.
    """

    samples_done: int
    samples_left: int
    steps_left: int


def progress_of(stages: CurriculumPlans, position: Position) -> EpochProgress:
    """Count the finished and remaining samples of an epoch at a position."""
    plan, steps = stages.plan(position), position.part.steps
    drawn = int((plan.assignment.bucket_of[plan.draws.rows] >= 0).sum())
    over_D = np.zeros(len(plan.draws.rows), np.bool_)
    for draws in plan.drawn_before(steps):
        over_D[draws] = True
    remaining = len(plan.order) - int(over_D.sum())
    return EpochProgress(drawn - remaining, remaining, len(plan) - steps)


def microbatches_in_all(stages: CurriculumPlans, config: StreamConfig, position: Position) -> int:
    """Count the microbatches of each rank in all epochs of a stream, finished ones included.

    Training loops that resume take a length for that of the whole pass, and leave out what they count as done. Earlier
    epochs count with the microbatches a step of now.

    Args:
        stages: plans of the stream.
        config: configuration of the stream.
        position: current position.

    Raises:
        NoLengthError: the stream has no end, or only its steps can be counted in advance.
    """
    if config.epochs is None:
        raise NoLengthError(
            "a stream without an end has no length: set stream.epochs, or count the steps of an epoch with"
            " len(StepLoader(stream))"
        )
    if position.part.ranks > 1 and config.microbatches > 1 and config.regime != "slot":
        raise NoLengthError(
            "ranks have different numbers of microbatches in a step: count steps with len(StepLoader(stream))"
        )
    if config.curriculum is not None:
        raise NoLengthError("a stream with stages (stream.curriculum) has no length that is known beforehand")
    earlier = position.step - sum(part.steps for part in position.parts)
    count = earlier * config.microbatches + sum(part.steps * part.microbatches for part in position.parts)
    while position.epoch < config.epochs:
        count += (len(stages.plan(position)) - position.part.steps) * config.microbatches
        position = position.next_epoch()
    return count


def steps_of_epoch(stages: CurriculumPlans, config: StreamConfig, position: Position) -> int:
    """Count all steps of the epoch that continues at a position, finished ones included; 0 after the last epoch."""
    position = _in_next_step(stages, position)
    if has_ended(stages, config, position):
        return 0
    epoch, steps = position.epoch, sum(part.steps for part in position.parts)
    while position.epoch == epoch:
        remaining, ends_at = len(stages.plan(position)) - position.part.steps, stages.ends_at(position)
        if ends_at is None or ends_at > position.step + remaining:
            return steps + remaining
        more = ends_at - position.step
        steps += more
        position = stages.enter(position.after_step(more))
    return steps


def batches_of_epoch(stages: CurriculumPlans, config: StreamConfig, position: Position) -> int:
    """Count a rank's batches in the epoch that continues at a position, finished ones included; 0 after the last epoch.

    All ranks have equally many in each step (``regime="slot"``, or one microbatch).
    """
    parts = _in_next_step(stages, position).parts
    to_come = steps_of_epoch(stages, config, position) - sum(part.steps for part in parts)
    if to_come <= 0:
        return 0
    return sum(part.steps * part.microbatches for part in parts) + to_come * config.microbatches


def has_ended(stages: CurriculumPlans, config: StreamConfig, position: Position) -> bool:
    """Return whether a stream has no step behind a position."""
    return config.epochs is not None and _in_next_step(stages, position).epoch >= config.epochs


def _in_next_step(stages: CurriculumPlans, position: Position) -> Position:
    """Return the same position in stage and epoch of the step behind it."""
    position = stages.enter(position)
    if position.part.steps == len(stages.plan(position)):
        position = stages.enter(position.next_epoch())
    return position
