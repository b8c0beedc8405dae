"""Static plans: one degree for all, samples as wholes on groups of so many GPUs. What everybody else does."""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from loader.base.arrays import Floats, Places
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
    choice_SM, chain_S = chains(problem, degree)
    placed = _placed(chain_S, problem.gpus // degree, largest_first)
    if placed is None:
        return None
    runs: list[Run] = []
    for sample, group, start_s in placed:
        gpus = range(group * degree, (group + 1) * degree)
        runs.extend(chain(problem, sample, choice_SM[sample], start_s, gpus))
    return Schedule.of(runs, problem.gpus)


def best_static(problem: Problem) -> tuple[Schedule, int] | None:
    """The best of the LPT plans and its degree, the lower of equals; None when there is none."""
    best: tuple[float, int] | None = None
    for degree in problem.degrees_K.tolist():
        chain_S = chains(problem, degree)[1]
        placed = _placed(chain_S, problem.gpus // degree, largest_first=True)
        if placed is not None:
            makespan_s = max((start_s + chain_S[sample] for sample, _, start_s in placed), default=0.0)
            best = min(best, (makespan_s, degree)) if best else (makespan_s, degree)
    if best is None:
        return None
    schedule = static(problem, best[1])
    assert schedule is not None
    return schedule, best[1]


def _placed(chain_S: Floats, groups: int, largest_first: bool) -> list[tuple[int, int, float]] | None:
    """Sample, group and start of each; None when a sample cannot run so."""
    if groups == 0 or not np.isfinite(chain_S).all():
        return None
    loads = [(0.0, group) for group in range(groups)]
    order_S = np.argsort(-chain_S, kind="stable") if largest_first else np.arange(len(chain_S))
    seconds_S = chain_S.tolist()
    placed = []
    for number, sample in enumerate(order_S.tolist()):
        start_s, group = loads[0] if largest_first else loads[number % groups]
        placed.append((sample, group, start_s))
        load = (start_s + seconds_S[sample], group)
        if largest_first:
            heapq.heapreplace(loads, load)
        else:
            loads[group] = load
    return placed


def chains(problem: Problem, degree: int) -> tuple[Places, Floats]:
    """Degrees of all cascades on groups of so many GPUs, by their place, int64 [S, M], and seconds of the chains, [S].

    A module that a sample lacks has -1; the chain of a sample that cannot run so is infinite.
    """
    times_SMK = np.where(problem.degrees_K <= degree, problem.times_SMK, np.inf)
    times_SMK[:, Module.DIT, problem.degrees_K != degree] = np.inf
    chain_S: Floats = np.where(problem.has_SM, times_SMK.min(axis=2), 0.0).sum(axis=1)
    return np.where(problem.has_SM, times_SMK.argmin(axis=2), -1), chain_S


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
