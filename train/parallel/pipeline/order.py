"""In which order a stage of a pipeline runs the forwards and backwards of a step's microbatches.

A stage takes a microbatch's tokens from the one before it and their gradient from the one behind. With microbatches of
equal cost, P stages idle for (P - 1) / (M + P - 1) of a step of M microbatches, in both schedules.
"""

from typing import Literal, NamedTuple

Schedule = Literal["1f1b", "gpipe"]


class Turn(NamedTuple):
    """The forward or the backward of one microbatch.

    Attributes:
        forward: or backward.
        microbatch: its number, from 0.
    """

    forward: bool
    microbatch: int


def turns(schedule: Schedule, stage: int, stages: int, microbatches: int) -> list[Turn]:
    """All turns of a stage in a step, in order.

    Args:
        schedule: ``gpipe``: all forwards, then all backwards (Huang et al., "GPipe", 2019). ``1f1b``: as many forwards
            as there are stages behind, then one forward and one backward in turn, so that no more than
            ``stages - stage`` microbatches are alive (Narayanan et al., "Efficient Large-Scale Language Model Training
            on GPU Clusters", 2021, section 2.2.1).
        stage: from 0.
        stages: of the pipeline.
        microbatches: of the step.
    """
    ahead = microbatches if schedule == "gpipe" else min(stages - stage - 1, microbatches)
    order = [Turn(True, number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        order += [Turn(True, ahead + number), Turn(False, number)]
    return order + [Turn(False, number) for number in range(microbatches - ahead, microbatches)]
