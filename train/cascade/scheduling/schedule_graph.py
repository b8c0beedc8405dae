"""Critical path method on a schedule: earliest ends and slack of all runs.

Forward and backward pass (Kelley, Walker, "Critical-path planning and scheduling", 1959). Each run depends on
the previous runs on its GPUs, and a DiT on its sample's other modules. `simulate.execute` computes the same
from individual GPUs; a pass here takes microseconds.
"""

from dataclasses import dataclass

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, Places
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Schedule


@dataclass(frozen=True, eq=False)
class ScheduleGraph:
    """Dependency graph of a schedule as flat arrays, indexed like ``schedule.runs``.

    Attributes:
        gpu_P: concatenated GPU numbers of all runs, int64.
        first_R: offset of each run in ``gpu_P``, and the total length last, int64 [R + 1].
        sample_R: sample of each run, int64 [R].
        last_R: True for DiTs, which depend on the sample's other runs, bool [R].
        gpus: number of GPUs.
    """

    gpu_P: Places
    first_R: Places
    sample_R: Places
    last_R: Flags
    gpus: int

    @classmethod
    def of(cls, schedule: Schedule) -> "ScheduleGraph":
        """Build the graph of a schedule."""
        degree_R = [len(run.gpus) for run in schedule.runs]
        return cls(
            np.array([gpu for run in schedule.runs for gpu in run.gpus], np.int64),
            np.cumsum([0, *degree_R]),
            np.array([run.cascade.sample for run in schedule.runs], np.int64),
            np.array([run.cascade.module == Module.DIT for run in schedule.runs], np.bool_),
            schedule.gpus,
        )

    @property
    def order(self) -> Places:
        """Order of the schedule, 0 to R - 1."""
        return np.arange(len(self.sample_R))

    def ends(self, seconds_R: Floats, order_R: Places | None = None) -> Floats:
        """Return the earliest end of each run in seconds, float64 [R].

        Args:
            seconds_R: duration of each run.
            order_R: execution order on all GPUs, consistent with dependencies; None: the schedule's.
        """
        order_R = self.order if order_R is None else order_R
        return np.asarray(_ends(order_R, seconds_R, *self._graph))

    def slack(self, seconds_R: Floats, order_R: Places | None = None) -> Floats:
        """Return the slack of each run: its largest delay that leaves the makespan unchanged, float64 [R].

        Args:
            seconds_R: duration of each run.
            order_R: execution order, as in `ends`.
        """
        order_R = self.order if order_R is None else order_R
        ends_R = self.ends(seconds_R, order_R)
        return np.asarray(_latest(order_R, seconds_R, ends_R.max(initial=0.0), *self._graph) - ends_R)

    @property
    def _graph(self) -> tuple[Places, Places, Places, Flags, int]:
        return self.gpu_P, self.first_R, self.sample_R, self.last_R, self.gpus


@compiled
def _ends(
    order_R: Places,
    seconds_R: Floats,
    gpu_P: Places,
    first_R: Places,
    sample_R: Places,
    last_R: Flags,
    gpus: int,
) -> Floats:
    free_G, ready_S = np.zeros(gpus), np.zeros(sample_R.max() + 1 if len(sample_R) else 0)
    ends_R = np.zeros(len(order_R))
    for run_index in order_R:
        sample = sample_R[run_index]
        start_s = ready_S[sample] if last_R[run_index] else 0.0
        for index in range(first_R[run_index], first_R[run_index + 1]):
            start_s = max(start_s, free_G[gpu_P[index]])
        end_s = start_s + seconds_R[run_index]
        for index in range(first_R[run_index], first_R[run_index + 1]):
            free_G[gpu_P[index]] = end_s
        ready_S[sample] = max(ready_S[sample], end_s)
        ends_R[run_index] = end_s
    return ends_R


@compiled
def _latest(
    order_R: Places,
    seconds_R: Floats,
    makespan_s: float,
    gpu_P: Places,
    first_R: Places,
    sample_R: Places,
    last_R: Flags,
    gpus: int,
) -> Floats:
    """Return the latest end of each run that keeps the makespan."""
    next_G = np.full(gpus, makespan_s)
    next_S = np.full(sample_R.max() + 1 if len(sample_R) else 0, makespan_s)
    latest_R = np.zeros(len(order_R))
    for run_index in order_R[::-1]:
        sample = sample_R[run_index]
        end_s = makespan_s if last_R[run_index] else next_S[sample]
        for index in range(first_R[run_index], first_R[run_index + 1]):
            end_s = min(end_s, next_G[gpu_P[index]])
        for index in range(first_R[run_index], first_R[run_index + 1]):
            next_G[gpu_P[index]] = end_s - seconds_R[run_index]
        if last_R[run_index]:
            next_S[sample] = end_s - seconds_R[run_index]
        latest_R[run_index] = end_s
    return latest_R
