"""List scheduling: whenever GPUs are free, the most urgent cascade that can start on them, starts.

A cascade that needs more GPUs than are free lets less urgent ones go first (Graham, "Bounds on multiprocessing timing
anomalies", 1969, with degrees).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loader.arrays import Floats, Places
from train.cascade.compiled import compiled
from train.cascade.problem import Cascade, Module, Problem
from train.cascade.schedule import Run

_WAITING, _RUNNING, _DONE = 0, 1, 2
_TOGETHER_S = 1e-9  # what ends within it ends at one time


class Tables(NamedTuple):
    """A problem as `place` wants it.

    Attributes:
        times_SMK: of the problem.
        degrees_K: of the problem.
    """

    times_SMK: Floats
    degrees_K: Places


class Choice(NamedTuple):
    """What a list schedule follows from.

    Attributes:
        degree_SM: place of each cascade's degree in ``problem.degrees_K``, -1 where a sample has none, int64 [S, M].
        urgency_SM: cascades go in falling order, float64 [S, M].
    """

    degree_SM: Places
    urgency_SM: Floats


class Scratch(NamedTuple):
    """Memory that `place` writes to, one line for each cascade that it is given.

    Attributes:
        order_N: the cascades by urgency, each as 3 * sample + module.
        start_N: when each of these starts; -1 before.
        ends_N: of those that run.
        running_N: places of these in the order.
        waits_S: of each sample of the problem, the cascades that its DiT still waits for.
    """

    order_N: Places
    start_N: Floats
    ends_N: Floats
    running_N: Places
    waits_S: Places

    @classmethod
    def of(cls, problem: Problem) -> "Scratch":
        """For all cascades of a problem."""
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
    members: Places, count: int, choice: Choice, tables: Tables, gpus: int, limit_s: float, scratch: Scratch
) -> float:
    """The makespan of some samples on some GPUs; infinite when it is above a limit.

    Args:
        members: samples.
        count: how many of them.
        choice: degrees, and the order in which cascades go.
        tables: of the problem.
        gpus: that there are; as many as the highest degree, at least.
        limit_s: where to give up.
        scratch: order and starts are found here afterwards.
    """
    order, start, ends, running, waits = scratch
    total = ordered(members, count, choice, order, waits)
    start[:total] = -1.0
    left, active, free, first = total, 0, gpus, 0
    now, makespan = 0.0, 0.0
    while left > 0:
        while start[first] >= 0:
            first += 1
        for number in range(first, total):
            if start[number] >= 0:
                continue
            sample, module = order[number] // 3, order[number] % 3
            if module == 2 and waits[sample] > 0:
                continue
            k = choice.degree_SM[sample, module]
            if tables.degrees_K[k] > free:
                continue
            end = now + tables.times_SMK[sample, module, k]
            if end > limit_s:
                return np.inf
            makespan = max(makespan, end)
            start[number] = now
            running[active], ends[active] = number, end
            active += 1
            left -= 1
            free -= tables.degrees_K[k]
            if free == 0:
                break
        now = np.inf
        for place in range(active):
            now = min(now, ends[place])
        place = 0
        while place < active:
            if ends[place] > now + 1e-9:
                place += 1
                continue
            sample, module = order[running[place]] // 3, order[running[place]] % 3
            waits[sample] -= 1
            free += tables.degrees_K[choice.degree_SM[sample, module]]
            active -= 1
            running[place], ends[place] = running[active], ends[active]
    return makespan


@compiled
def ordered(members: Places, count: int, choice: Choice, order_N: Places, waits_S: Places) -> int:
    """Sorts the cascades of some samples by urgency and counts what their DiTs wait for; how many there are."""
    total = 0
    for number in range(count):
        sample = members[number]
        waits_S[sample] = -1
        for module in range(3):
            if choice.degree_SM[sample, module] < 0:
                continue
            waits_S[sample] += 1
            urgency = choice.urgency_SM[sample, module]
            place = total
            while place > 0 and choice.urgency_SM[order_N[place - 1] // 3, order_N[place - 1] % 3] < urgency:
                order_N[place] = order_N[place - 1]
                place -= 1
            order_N[place] = 3 * sample + module
            total += 1
    return total


def runs(problem: Problem, members: Places, choice: Choice, gpus: Sequence[int]) -> Iterator[Run]:
    """The runs of some samples on GPUs of the given numbers.

    A cascade takes the GPUs on which its sample's others ran before, as far as they are free, then the first ones.
    """
    scratch = Scratch.of(problem)
    tables = Tables(problem.times_SMK, problem.degrees_K)
    place(members, len(members), choice, tables, len(gpus), np.inf, scratch)
    total = int((choice.degree_SM[members] >= 0).sum())
    free, active = set(gpus), list[Run]()
    used: dict[int, tuple[int, ...]] = {}
    for number in np.argsort(scratch.start_N[:total], kind="stable").tolist():
        start_s = float(scratch.start_N[number])
        sample, module = divmod(int(scratch.order_N[number]), len(Module))
        for run in [run for run in active if run.end_s <= start_s + _TOGETHER_S]:
            active.remove(run)
            free.update(run.gpus)
        k = int(choice.degree_SM[sample, module])
        before = used.get(sample, ())
        chosen = sorted(free, key=lambda gpu: (gpu not in before, gpu))[: int(problem.degrees_K[k])]
        end_s = start_s + float(problem.times_SMK[sample, module, k])
        run = Run(Cascade(sample, Module(module)), start_s, end_s, tuple(sorted(chosen)))
        free.difference_update(chosen)
        active.append(run)
        used[sample] = (*before, *chosen)
        yield run
