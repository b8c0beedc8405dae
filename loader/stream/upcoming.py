"""Shapes of the next step's microbatches, known before they are read."""

import numpy as np

from reelweave.loader.batch import UpcomingMicrobatch
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.plan.position import Position
from reelweave.loader.read.collate import dtype_and_shape
from reelweave.loader.stream.curriculum_plans import CurriculumPlans


def upcoming_step(
    stages: CurriculumPlans, position: Position, epochs: int | None, latents: Latents | None
) -> list[UpcomingMicrobatch] | None:
    """Return the microbatches of all ranks in the step at a position, rank after rank, without opening a file.

    None at the end of the stream, or if the next plan has not been made by reading yet.

    Args:
        stages: plans of the stream.
        position: position in the stream.
        epochs: number of epochs; None is without end.
        latents: description of the stored latents; None if clips are read.
    """
    position = stages.enter(position)
    plan = stages.cached_plan(position)
    if plan is None or position.part.steps == len(plan):
        # The plan is gone once all of its epoch was read.
        position = stages.enter(position.next_epoch())
        plan = stages.cached_plan(position)
    if plan is None or (epochs is not None and position.epoch >= epochs):
        return None
    assignment, packed = plan.assignment, position.part.setting.regime == "pack"
    lengths_of = assignment.own_lengths if packed else assignment.padded_lengths
    microbatches = []
    for micro in plan.step(position.part.steps).microbatches:
        buckets = tuple(assignment.buckets[bucket] for bucket in assignment.bucket_of[micro.rows])
        pixels = tuple(dtype_and_shape(bucket, latents)[0] == np.uint8 for bucket in buckets)
        contexts = latents is not None and latents.text is not None
        microbatches.append(
            UpcomingMicrobatch(buckets, tuple(lengths_of(micro.rows).tolist()), pixels, contexts)
        )
    return microbatches
