"""Slack of runs, and an execution order by least slack.

The order only decides which of two runs that share a GPU goes first, which a plan leaves almost no freedom for
(docs/benchmarks/cascade_online.md). Execution therefore keeps the order of starts; slack serves people and
plans.
"""

import numpy as np

from reelweave.loader.base.arrays import Floats, Places
from reelweave.train.cascade.placement.mapper import needs
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.schedule_graph import ScheduleGraph


def slack_s(schedule: Schedule) -> Floats:
    """Return the slack of each run: its largest delay that leaves the makespan unchanged, float64 [R].

    Slack counts from the earliest start with GPUs in the order of the schedule.
    """
    return ScheduleGraph.of(schedule).slack(np.array([run.end_s - run.start_s for run in schedule.runs]))


def least_slack_first(schedule: Schedule, near: float) -> Places:
    """Return one order for all GPUs: by start, and by least slack among close starts.

    Inputs precede their consumers, so that GPUs in this order never deadlock.

    Args:
        schedule: planned schedule.
        near: window as a share of the makespan; starts within one window count as equal.

    Returns:
        Indices of runs, int64 [R]; for `ScheduleGraph.ends`.
    """
    slack_R, window_s = slack_s(schedule), near * schedule.makespan_s
    givers = needs(schedule.runs)

    def key(run_index: int) -> tuple[float, float, int]:
        start_s = schedule.runs[run_index].start_s
        return (start_s // window_s if window_s else start_s, float(slack_R[run_index]), run_index)

    first: dict[int, None] = {}
    for run_index in sorted(range(len(schedule.runs)), key=key):
        first.update(dict.fromkeys([*givers[run_index], run_index]))
    return np.array(list(first), np.int64)
