"""Static plans, the usual baseline: one degree for all samples, each placed as a whole on a GPU group."""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule


def static(
    problem: Problem, degree: int, largest_first: bool = True, menu: GroupMenu | None = None
) -> Schedule | None:
    """Plan groups of ``degree`` GPUs, each running its samples in sequence, module by module.

    Args:
        problem: planning problem.
        degree: degree of all DiT cascades; other modules use their fastest degree within the group.
        largest_first: LPT: assign samples, longest first, to the earliest free group (Graham 1969). Otherwise
            round-robin in the given order, as in training on randomly drawn buckets.
        menu: groups that modules may have; None: the first GPUs of their sample's group.

    Returns:
        The schedule; None if a sample is infeasible at this degree.
    """
    choice_SM, chain_S = chains(problem, degree, menu)
    assignments = _place_samples(chain_S, problem.gpus // degree, largest_first)
    if assignments is None:
        return None
    runs: list[Run] = []
    for sample, group, start_s in assignments:
        gpus = range(group * degree, (group + 1) * degree)
        runs.extend(chain(problem, sample, choice_SM[sample], start_s, gpus, menu))
    return Schedule.of(runs, problem.gpus)


def best_static(problem: Problem, menu: GroupMenu | None = None) -> tuple[Schedule, int] | None:
    """Return the best LPT plan and its degree, the lower of equals; None if none is feasible.

    With a menu all modules have groups of it.
    """
    best: tuple[float, int] | None = None
    for degree in problem.degrees_K.tolist():
        chain_S = chains(problem, degree, menu)[1]
        assignments = _place_samples(chain_S, problem.gpus // degree, largest_first=True)
        if assignments is not None:
            makespan_s = max((start_s + chain_S[sample] for sample, _, start_s in assignments), default=0.0)
            best = min(best, (makespan_s, degree)) if best else (makespan_s, degree)
    if best is None:
        return None
    schedule = static(problem, best[1], menu=menu)
    assert schedule is not None
    return schedule, best[1]


def _place_samples(chain_S: Floats, groups: int, largest_first: bool) -> list[tuple[int, int, float]] | None:
    """Return sample, group and start of each sample; None if one is infeasible."""
    if groups == 0 or not np.isfinite(chain_S).all():
        return None
    loads = [(0.0, group) for group in range(groups)]
    order_S = np.argsort(-chain_S, kind="stable") if largest_first else np.arange(len(chain_S))
    seconds_S = chain_S.tolist()
    assignments = []
    for index, sample in enumerate(order_S.tolist()):
        start_s, group = loads[0] if largest_first else loads[index % groups]
        assignments.append((sample, group, start_s))
        load = (start_s + seconds_S[sample], group)
        if largest_first:
            heapq.heapreplace(loads, load)
        else:
            loads[group] = load
    return assignments


def chains(problem: Problem, degree: int, menu: GroupMenu | None = None) -> tuple[IndexArray, Floats]:
    """Return the fastest degree index of each cascade within a group, int64 [S, M], and chain times in seconds, [S].

    A missing module has index -1; an infeasible chain has infinite time.
    """
    times_SMK = np.where(problem.degrees_K <= degree, problem.times_SMK, np.inf)
    if menu is not None:
        firsts = range(0, problem.gpus - degree + 1, degree)
        for k, module_degree in enumerate(problem.degrees_K.tolist()):
            if module_degree <= degree and any(
                menu.within(first, first + degree, module_degree) is None for first in firsts
            ):
                times_SMK[:, :, k] = np.inf
    times_SMK[:, Module.DIT, problem.degrees_K != degree] = np.inf
    chain_S: Floats = np.where(problem.has_SM, times_SMK.min(axis=2), 0.0).sum(axis=1)
    return np.where(problem.has_SM, times_SMK.argmin(axis=2), -1), chain_S


def chain(
    problem: Problem,
    sample: int,
    choice_M: IndexArray,
    start_s: float,
    gpus: Sequence[int],
    menu: GroupMenu | None = None,
) -> Iterator[Run]:
    """Yield the cascades of a sample in sequence, on the first GPUs of a group, or its first groups of the menu."""
    for module in Module:
        k = int(choice_M[module])
        if k >= 0:
            end_s = start_s + float(problem.times_SMK[sample, module, k])
            module_degree = int(problem.degrees_K[k])
            first = None if menu is None else menu.within(gpus[0], gpus[-1] + 1, module_degree)
            chosen = gpus[:module_degree] if first is None else range(first, first + module_degree)
            yield Run(Cascade(sample, module), start_s, end_s, tuple(chosen))
            start_s = end_s
