"""List scheduling: as soon as enough GPUs are free, the most urgent ready cascade starts.

While a cascade waits for more GPUs than are free, less urgent ones may start first (Graham, "Bounds on multiprocessing
timing
anomalies", 1969, with degrees).
"""

from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus


class Tables(NamedTuple):
    """Arrays of a problem for compiled code.

    Attributes:
        times_SMK: `Problem.times_SMK`.
        degrees_K: `Problem.degrees_K`.
    """

    times_SMK: Floats
    degrees_K: IndexArray


class Choice(NamedTuple):
    """Decisions that determine a list schedule.

    Attributes:
        degree_SM: index into ``problem.degrees_K``, -1 where a sample lacks the module, int64 [S, M].
        urgency_SM: priority of each cascade; higher starts first, float64 [S, M].
    """

    degree_SM: IndexArray
    urgency_SM: Floats


class ListScratch(NamedTuple):
    """Work buffers of `place`, one row per cascade.

    Attributes:
        order_N: cascades by urgency, each as 3 * sample + module.
        start_N: start of each cascade in the order; -1 until it is set.
        ends_N: ends of running cascades.
        running_N: positions of running cascades in the order.
        waits_S: number of cascades that the DiT of each sample still waits for.
    """

    order_N: IndexArray
    start_N: Floats
    ends_N: Floats
    running_N: IndexArray
    waits_S: IndexArray

    @classmethod
    def of(cls, problem: Problem) -> "ListScratch":
        """Allocate buffers for all cascades of a problem."""
        count = problem.samples * len(Module)
        return cls(
            np.empty(count, np.int64),
            np.empty(count),
            np.empty(count),
            np.empty(count, np.int64),
            np.empty(problem.samples, np.int64),
        )


@compiled
def place(
    members: IndexArray,
    count: int,
    choice: Choice,
    tables: Tables,
    gpus: int,
    limit_s: float,
    scratch: ListScratch,
) -> float:
    """Return the makespan of some samples on some GPUs; infinite if it exceeds a limit.

    Args:
        members: sample numbers.
        count: number of samples in ``members`` to place.
        choice: degrees and priorities.
        tables: arrays of the problem.
        gpus: number of GPUs; at least the highest degree.
        limit_s: makespan at which to give up.
        scratch: buffers that hold order and starts on return.
    """
    order, start, ends, running, waits = scratch
    total = order_cascades(members, count, choice, order, waits)
    start[:total] = -1.0
    remaining, active, free, first = total, 0, gpus, 0
    now, makespan = 0.0, 0.0
    while remaining > 0:
        while start[first] >= 0:
            first += 1
        # At this time start all that fit on free GPUs, in order of priority.
        for index in range(first, total):
            if start[index] >= 0:
                continue
            sample, module = order[index] // 3, order[index] % 3
            if module == 2 and waits[sample] > 0:
                continue
            k = choice.degree_SM[sample, module]
            if tables.degrees_K[k] > free:
                continue
            end = now + tables.times_SMK[sample, module, k]
            if end > limit_s:
                return np.inf
            makespan = max(makespan, end)
            start[index] = now
            running[active], ends[active] = index, end
            active += 1
            remaining -= 1
            free -= tables.degrees_K[k]
            if free == 0:
                break
        # Go on to the next end, and free the GPUs of all that end there.
        now = np.inf
        for slot in range(active):
            now = min(now, ends[slot])
        slot = 0
        while slot < active:
            if ends[slot] > now + 1e-9:
                slot += 1
                continue
            sample, module = order[running[slot]] // 3, order[running[slot]] % 3
            waits[sample] -= 1
            free += tables.degrees_K[choice.degree_SM[sample, module]]
            active -= 1
            running[slot], ends[slot] = running[active], ends[active]
    return makespan


@compiled
def order_cascades(
    members: IndexArray, count: int, choice: Choice, order_N: IndexArray, waits_S: IndexArray
) -> int:
    """Sort the cascades of some samples by urgency, count what each DiT waits for, and return their number."""
    total = 0
    for index in range(count):
        sample = members[index]
        waits_S[sample] = -1
        for module in range(3):
            if choice.degree_SM[sample, module] < 0:
                continue
            waits_S[sample] += 1
            urgency = choice.urgency_SM[sample, module]
            position = total
            while (
                position > 0
                and choice.urgency_SM[order_N[position - 1] // 3, order_N[position - 1] % 3] < urgency
            ):
                order_N[position] = order_N[position - 1]
                position -= 1
            order_N[position] = 3 * sample + module
            total += 1
    return total


def critical_path(problem: Problem, degree_SM: IndexArray) -> Floats:
    """Return the critical path of each cascade as its urgency: own time plus its DiT's, float64 [S, M]."""
    sample_S1, module_M = np.arange(problem.samples)[:, None], np.arange(len(Module))
    time_SM = problem.times_SMK[sample_S1, module_M, degree_SM]
    path_SM = time_SM + time_SM[:, Module.DIT :]
    path_SM[:, Module.DIT] = time_SM[:, Module.DIT]
    return np.asarray(path_SM)


def makespan(problem: Problem, choice: Choice, scratch: ListScratch) -> float:
    """Return the makespan in seconds of the list schedule of all samples on all GPUs."""
    tables = Tables(problem.times_SMK, problem.degrees_K)
    members_S = np.arange(problem.samples)
    return float(place(members_S, problem.samples, choice, tables, problem.gpus, np.inf, scratch))


def schedule_samples(problem: Problem, choice: Choice) -> Schedule:
    """Return the list schedule of all samples on all GPUs."""
    scratch = ListScratch.of(problem)
    makespan(problem, choice, scratch)
    timed = (
        TimedCascade(float(scratch.start_N[index]), cascade, int(choice.degree_SM[cascade]))
        for index in range(int((choice.degree_SM >= 0).sum()))
        for cascade in [_cascade(int(scratch.order_N[index]))]
    )
    return Schedule.of(assign_gpus(problem, timed, range(problem.gpus)), problem.gpus)


def _cascade(index: int) -> Cascade:
    return Cascade(index // len(Module), Module(index % len(Module)))
