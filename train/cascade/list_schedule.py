"""List scheduling: whenever GPUs are free, the first cascade of a list that can start, starts.

The list names samples; within a sample the DiT comes first, once it can run, then the VAE, then the text encoder. A
cascade that needs more GPUs than are free lets others behind it go first (Graham, "Bounds on multiprocessing timing
anomalies", 1969, with degrees).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from loader.arrays import Floats, Places
from train.cascade.compiled import compiled
from train.cascade.problem import Cascade, Module, Problem
from train.cascade.schedule import Run

_WAITING, _RUNNING, _DONE = 0, 1, 2
_TOGETHER_S = 1e-9  # what ends within it ends at one time
_TEXT, _VAE, _DIT = Module.TEXT.value, Module.VAE.value, Module.DIT.value


class Tables(NamedTuple):
    """A problem as `place` wants it.

    Attributes:
        times_SMK: of the problem.
        degrees_K: of the problem.
    """

    times_SMK: Floats
    degrees_K: Places


class Scratch(NamedTuple):
    """Memory that `place` writes to: for as many samples as there are lines."""

    state_SM: Any
    running_N: Places
    ends_N: Floats
    start_SM: Floats

    @classmethod
    def of(cls, samples: int) -> "Scratch":
        """For lists of so many samples at most."""
        cascades = samples * len(Module)
        return cls(
            np.empty((samples, len(Module)), np.int8),
            np.empty(cascades, np.int64),
            np.empty(cascades),
            np.empty((samples, len(Module))),
        )


@compiled
def place(
    order: Places, count: int, degree_SM: Places, tables: Tables, gpus: int, limit_s: float, scratch: Scratch
) -> float:
    """The makespan of a list; infinite when it is above a limit.

    Args:
        order: samples, those that go first at the beginning.
        count: how many of them.
        degree_SM: place of each cascade's degree in the tables; -1 where a sample has no such module.
        tables: of the problem.
        gpus: that there are; as many as the highest degree, at least.
        limit_s: where to give up.
        scratch: afterwards holds the start of the cascades, by place in the list.
    """
    state_PM, running, ends, start_PM = scratch
    left, active, free, first = 0, 0, gpus, 0
    now, makespan = 0.0, 0.0
    for place in range(count):
        for module in range(3):
            waits = degree_SM[order[place], module] >= 0
            state_PM[place, module] = 0 if waits else 2
            left += waits
    while left > 0:
        while state_PM[first, 2] != 0:
            first += 1
        for place in range(first, count):
            if free == 0:
                break
            sample = order[place]
            if state_PM[place, 2] != 0:
                continue
            ready = state_PM[place, 0] == 2 and state_PM[place, 1] == 2
            for module in range(2, -1, -1):
                if state_PM[place, module] != 0 or (module == 2 and not ready):
                    continue
                degree = tables.degrees_K[degree_SM[sample, module]]
                if degree > free:
                    continue
                end = now + tables.times_SMK[sample, module, degree_SM[sample, module]]
                if end > limit_s:
                    return np.inf
                makespan = max(makespan, end)
                start_PM[place, module] = now
                state_PM[place, module] = 1
                free -= degree
                left -= 1
                running[active], ends[active] = 3 * place + module, end
                active += 1
        now = np.inf
        for number in range(active):
            now = min(now, ends[number])
        number = 0
        while number < active:
            if ends[number] > now + 1e-9:
                number += 1
                continue
            place, module = running[number] // 3, running[number] % 3
            state_PM[place, module] = 2
            free += tables.degrees_K[degree_SM[order[place], module]]
            active -= 1
            running[number], ends[number] = running[active], ends[active]
    return makespan


def runs(
    problem: Problem, order: Places, degree_SM: Places, gpus: Sequence[int]
) -> Iterator[Run]:
    """The runs of a list, on GPUs of the given numbers.

    A cascade takes the GPUs on which its sample's others ran before, as far as they are free, then the first ones.
    """
    scratch = Scratch.of(len(order))
    tables = Tables(problem.times_SMK, problem.degrees_K)
    place(order, len(order), degree_SM, tables, len(gpus), np.inf, scratch)
    starts = [
        (scratch.start_SM[number, module], -module, number)
        for number, sample in enumerate(order.tolist())
        for module in Module
        if degree_SM[sample, module] >= 0
    ]
    free, active = set(gpus), list[Run]()
    used: dict[int, tuple[int, ...]] = {}
    for start_s, module, number in sorted(starts):
        sample, module = int(order[number]), Module(-module)
        for run in [run for run in active if run.end_s <= start_s + _TOGETHER_S]:
            active.remove(run)
            free.update(run.gpus)
        k = degree_SM[sample, module]
        before = used.get(sample, ())
        chosen = sorted(free, key=lambda gpu: (gpu not in before, gpu))[: int(problem.degrees_K[k])]
        run = Run(
            Cascade(sample, module),
            float(start_s),
            float(start_s + problem.times_SMK[sample, module, k]),
            tuple(sorted(chosen)),
        )
        free.difference_update(chosen)
        active.append(run)
        used[sample] = (*before, *chosen)
        yield run
