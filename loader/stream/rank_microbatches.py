"""Planned microbatches of one rank from a position on."""

from collections.abc import Callable, Iterator

from reelweave.loader.plan.epoch_plan import EpochPlan, StepPlan
from reelweave.loader.plan.position import Position
from reelweave.loader.read.assembly import RankMicrobatch
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.curriculum_plans import CurriculumPlans

OwnStep = Callable[[EpochPlan, int], StepPlan]


def rank_microbatches(
    stages: CurriculumPlans,
    config: StreamConfig,
    rank: int,
    position: Position,
    own_step: OwnStep | None = None,
) -> Iterator[RankMicrobatch]:
    """Yield the microbatches of one rank, step by step and epoch by epoch, to the end of the stream.

    Args:
        stages: plans of the stream.
        config: configuration of the stream.
        rank: data-parallel rank.
        position: position of the first step.
        own_step: function from plan and step to this rank's reads, called once per step; None reads as planned.
    """
    position = stages.enter(position)
    while config.epochs is None or position.epoch < config.epochs:
        # A plan holds for the rest of an epoch, or until a stage of the curriculum ends within it.
        plan, assignment = stages.plan(position), stages.assignment(position.part.setting)
        ends_at = stages.ends_at(position)
        packed = position.part.setting.regime == "pack"
        lengths_of = assignment.own_lengths if packed else assignment.padded_lengths
        for step in range(position.part.steps, len(plan)):
            step_plan = plan.step(step, rank) if own_step is None else own_step(plan, step)
            # Every microbatch carries the position behind its step: whoever stops there goes on with it.
            after = position.after_step()
            for micro in step_plan.microbatches:
                yield RankMicrobatch(
                    plan=plan,
                    micro=micro,
                    buckets=tuple(assignment.buckets[bucket] for bucket in assignment.bucket_of[micro.rows]),
                    lengths=tuple(lengths_of(micro.rows).tolist()),
                    slots=len(step_plan.microbatches),
                    samples=step_plan.samples,
                    packed=packed,
                    before=position,
                    after=after,
                )
            position = after
            if position.step == ends_at:
                break
        else:
            position = position.next_epoch()
        position = stages.enter(position)
