"""Pipeline schedules: order of a stage's forwards and backwards in a step.

A stage receives a microbatch's tokens from the previous stage and their gradient from the next. With M
microbatches of equal cost, P stages idle for (P - 1) / (M + P - 1) of a step in both schedules.
"""

from typing import Literal, NamedTuple

PipelineSchedule = Literal["1f1b", "gpipe"]


class Turn(NamedTuple):
    """Forward or backward of one microbatch.

    Attributes:
        forward: True for a forward, False for a backward.
        microbatch: index of the microbatch, from 0.
    """

    forward: bool
    microbatch: int


def turns(schedule: PipelineSchedule, stage: int, stages: int, microbatches: int) -> list[Turn]:
    """Return all turns of a stage in a step, in order.

    Args:
        schedule: ``gpipe``: all forwards, then all backwards (Huang et al., "GPipe", 2019). ``1f1b``: a
            forward per later stage, then alternating forwards and backwards. So at most ``stages - stage``
            microbatches are alive. Source: Narayanan et al., "Efficient Large-Scale Language Model Training
            on GPU Clusters", 2021, section 2.2.1.
        stage: number of the stage, from 0.
        stages: number of stages.
        microbatches: number of microbatches in the step.
    """
    ahead = microbatches if schedule == "gpipe" else min(stages - stage - 1, microbatches)
    order = [Turn(True, index) for index in range(ahead)]
    for index in range(microbatches - ahead):
        order += [Turn(True, ahead + index), Turn(False, index)]
    return order + [Turn(False, index) for index in range(microbatches - ahead, microbatches)]
