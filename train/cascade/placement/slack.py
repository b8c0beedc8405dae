"""By how much runs may be late, and an order of execution that lets those with the least slack go first.

The order changes only which of two runs that share a GPU goes first, and a plan has little left to decide there:
docs/benchmarks/cascade_online.md. Execution therefore keeps the order of the starts, and slack is for people and plans.
"""

import numpy as np

from loader.base.arrays import Floats, Places
from train.cascade.placement.mapper import needs
from train.cascade.schedule import Schedule
from train.cascade.scheduling.passes import Lines


def slack_s(schedule: Schedule) -> Floats:
    """By how much each run alone may end later, and the schedule end no later, float64 [R].

    Counted from when it can start at the earliest, GPUs following the order of the schedule.
    """
    return Lines.of(schedule).slack(np.array([run.end_s - run.start_s for run in schedule.runs]))


def least_slack_first(schedule: Schedule, near: float) -> Places:
    """One order for all GPUs: that of the starts, but among starts that are near, of the least slack.

    What a run needs comes before it, so that GPUs that follow it never wait for each other.

    Args:
        schedule: as planned.
        near: share of the makespan; starts within one such window count as one.

    Returns:
        Numbers of the runs, int64 [R]; for `passes.Lines.ends`.
    """
    slack_R, window_s = slack_s(schedule), near * schedule.makespan_s
    givers = needs(schedule.runs)

    def key(number: int) -> tuple[float, float, int]:
        start_s = schedule.runs[number].start_s
        return (start_s // window_s if window_s else start_s, float(slack_R[number]), number)

    first: dict[int, None] = {}
    for number in sorted(range(len(schedule.runs)), key=key):
        first.update(dict.fromkeys([*givers[number], number]))
    return np.array(list(first), np.int64)
