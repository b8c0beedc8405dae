"""Static plans: one degree for all, samples as wholes on groups of so many GPUs. What everybody else does."""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from loader.arrays import Floats, Places
from train.cascade.problem import Cascade, Module, Problem
from train.cascade.schedule import Run, Schedule


def static(problem: Problem, degree: int, largest_first: bool = True) -> Schedule | None:
    """Groups of ``degree`` GPUs, each of which runs its samples one after the other, module by module.

    Args:
        problem: what is to be planned.
        degree: of all DiT cascades; the others use as many GPUs of their group as make them fastest.
        largest_first: each sample goes to the group that is done first, the longest sample first (LPT, Graham 1969);
            else to one group after the other in the order in which they come, as training on buckets drawn at random.

    Returns:
        The schedule; None when a sample cannot run so.
    """
    groups = problem.gpus // degree
    found = on_groups(problem, degree)
    if groups == 0 or found is None:
        return None
    choice_SM, chain_S = found
    loads = [(0.0, group) for group in range(groups)]
    runs: list[Run] = []
    order = np.argsort(-chain_S, kind="stable") if largest_first else np.arange(problem.samples)
    for number, sample in enumerate(order.tolist()):
        start_s, group = loads[0] if largest_first else loads[number % groups]
        load = (start_s + float(chain_S[sample]), group)
        if largest_first:
            heapq.heapreplace(loads, load)
        else:
            loads[group] = load
        first = group * degree
        runs.extend(chain(problem, sample, choice_SM[sample], start_s, range(first, first + degree)))
    return Schedule.of(runs, problem.gpus)


def best_static(problem: Problem) -> tuple[Schedule, int] | None:
    """The best of the LPT plans and its degree, the lower of equals; None when there is none."""
    plans = [(static(problem, degree), degree) for degree in problem.degrees_K.tolist()]
    return min(
        ((plan, degree) for plan, degree in plans if plan is not None),
        key=lambda found: found[0].makespan_s,
        default=None,
    )


def on_groups(problem: Problem, degree: int) -> tuple[Places, Floats] | None:
    """Degrees of all cascades on groups of so many GPUs, by their place, int64 [S, M], and seconds of the chains, [S].

    A module that a sample lacks has -1. None when a sample cannot run so.
    """
    own = np.flatnonzero(problem.degrees_K == degree)
    times_SMK = np.where(problem.degrees_K <= degree, problem.times_SMK, np.inf)
    times_SMK[:, Module.DIT, : own[0]] = np.inf
    choice_SM, time_SM = times_SMK.argmin(axis=2), times_SMK.min(axis=2)
    if not np.isfinite(time_SM[problem.has_SM]).all():
        return None
    chain_S: Floats = np.where(problem.has_SM, time_SM, 0.0).sum(axis=1)
    return np.where(problem.has_SM, choice_SM, -1), chain_S


def chain(
    problem: Problem, sample: int, choice_M: Places, start_s: float, gpus: Sequence[int]
) -> Iterator[Run]:
    """The cascades of a sample one after the other, on the first GPUs of a group."""
    for module in Module:
        k = int(choice_M[module])
        if k >= 0:
            end_s = start_s + float(problem.times_SMK[sample, module, k])
            yield Run(Cascade(sample, module), start_s, end_s, tuple(gpus[: int(problem.degrees_K[k])]))
            start_s = end_s
