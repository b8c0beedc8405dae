"""A rank's microbatches from a position on, as they are planned: which samples, of which step, in which shape."""

from collections.abc import Callable, Iterator

from loader.plan.epoch_plan import EpochPlan, StepPlan
from loader.plan.position import Position
from loader.read.pipeline import RankMicrobatch
from loader.read.stream_config import StreamConfig
from loader.stream.curriculum_plans import CurriculumPlans

OwnStep = Callable[[EpochPlan, int], StepPlan]


def rank_microbatches(
    stages: CurriculumPlans,
    config: StreamConfig,
    rank: int,
    position: Position,
    own_step: OwnStep | None = None,
) -> Iterator[RankMicrobatch]:
    """Yield the microbatches of one rank, step by step, epoch by epoch, until the epochs are over.

    Args:
        stages: what an epoch draws, and its plans.
        config: of the stream.
        rank: data-parallel.
        position: of the first step.
        own_step: what the rank reads of a step of a plan, in order; None is what it runs by the plan. Called once for
            each step.
    """
    position = stages.entered(position)
    while config.epochs is None or position.epoch < config.epochs:
        plan, assignment = stages.plan(position), stages.assignment(position.part.setting)
        ends_at = stages.ends_at(position)
        packed = position.part.setting.regime == "pack"
        lengths_of = assignment.own_lengths if packed else assignment.padded_lengths
        for number in range(position.part.steps, len(plan)):
            own = plan.step(number, rank) if own_step is None else own_step(plan, number)
            after = position.after_step()
            for micro in own.microbatches:
                yield RankMicrobatch(
                    plan=plan,
                    micro=micro,
                    buckets=tuple(assignment.buckets[place] for place in assignment.bucket_of[micro.rows]),
                    lengths=tuple(lengths_of(micro.rows).tolist()),
                    slots=len(own.microbatches),
                    samples=own.samples,
                    packed=packed,
                    before=position,
                    after=after,
                )
            position = after
            if position.step == ends_at:
                break
        else:
            position = position.next_epoch()
        position = stages.entered(position)
