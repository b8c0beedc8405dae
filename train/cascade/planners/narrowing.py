"""Degrees that a search need not try; compiled."""

import numpy as np

from loader.base.arrays import Flags, Floats, Places
from train.cascade.problem import Module, Problem
from train.cascade.scheduling.compiled import compiled

_ROUNDS = 3  # what one finds helps the next


def narrowed(problem: Problem, limit_s: float) -> Floats | None:
    """The times of the degrees that a schedule can have which ends within a limit, infinite for others.

    Its chains end in time, and its work fits under the limit on all GPUs: a degree that costs more beyond the least
    than is left when all others cost the least is none.

    Returns:
        Float64 [S, M, K]; None where there is no such schedule.
    """
    times_SMK = problem.times_SMK.copy()
    fits = _narrow(times_SMK, problem.degrees_K, problem.has_SM, problem.gpus * limit_s, limit_s)
    return times_SMK if fits else None


def tried(problem: Problem, times_SMK: Floats, degree_SM: Places, tried_K: Flags) -> Floats:
    """Times for a search: DiTs try some degrees alone, and every cascade may keep the degree that it has.

    Args:
        problem: what is planned.
        times_SMK: of the degrees to try; infinite for others.
        degree_SM: what cascades have.
        tried_K: which degrees DiTs try.
    """
    found_SMK = times_SMK.copy()
    found_SMK[:, Module.DIT, ~tried_K] = np.inf
    _allow_own(found_SMK, problem.times_SMK, degree_SM)
    return found_SMK


@compiled
def _allow_own(found_SMK: Floats, times_SMK: Floats, degree_SM: Places) -> None:
    for sample in range(len(degree_SM)):
        for module in range(degree_SM.shape[1]):
            k = degree_SM[sample, module]
            if k >= 0:
                found_SMK[sample, module, k] = times_SMK[sample, module, k]


@compiled
def _narrow(times_SMK: Floats, degrees_K: Places, has_SM: Flags, room: float, limit_s: float) -> bool:
    samples, modules, degrees = times_SMK.shape
    last = modules - 1
    least_SM = np.zeros((samples, modules))
    for _ in range(_ROUNDS):
        work = 0.0
        for sample in range(samples):
            before_s = 0.0
            for module in range(last):
                if has_SM[sample, module]:
                    before_s = max(before_s, times_SMK[sample, module].min())
            after_s = times_SMK[sample, last].min()
            for module in range(modules):
                if not has_SM[sample, module]:
                    continue
                other_s = before_s if module == last else after_s
                least = np.inf
                for k in range(degrees):
                    if times_SMK[sample, module, k] + other_s > limit_s:
                        times_SMK[sample, module, k] = np.inf
                    least = min(least, times_SMK[sample, module, k] * degrees_K[k])
                least_SM[sample, module] = least
                work += least
        if not work <= room:
            return False
        for sample in range(samples):
            for module in range(modules):
                for k in range(degrees):
                    if times_SMK[sample, module, k] * degrees_K[k] > least_SM[sample, module] + room - work:
                        times_SMK[sample, module, k] = np.inf
    return True
