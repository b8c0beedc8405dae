"""Pruning of degrees that no schedule within a limit can use; compiled."""

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.problem import Module, Problem

_ROUNDS = 3  # one round's pruning enables the next


def narrow_degrees(problem: Problem, limit_s: float) -> Floats | None:
    """Return the times of degrees that a schedule within a limit can use, infinite for others.

    In such a schedule all chains end in time and the total work fits the GPUs. A degree is pruned if its extra
    work exceeds the remainder when all other cascades use their least work.

    Returns:
        Float64 [S, M, K]; None if there is no such schedule.
    """
    times_SMK = problem.times_SMK.copy()
    fits = _narrow(times_SMK, problem.degrees_K, problem.has_SM, problem.gpus * limit_s, limit_s)
    return times_SMK if fits else None


def times_to_try(problem: Problem, times_SMK: Floats, degree_SM: IndexArray, tried_K: Flags) -> Floats:
    """Return times for a search: DiTs try only some degrees, and every cascade may keep its own.

    Args:
        problem: planning problem.
        times_SMK: times of candidate degrees; infinite for others.
        degree_SM: current degrees.
        tried_K: degrees that DiTs try.
    """
    found_SMK = times_SMK.copy()
    found_SMK[:, Module.DIT, ~tried_K] = np.inf
    _allow_own(found_SMK, problem.times_SMK, degree_SM)
    return found_SMK


@compiled
def _allow_own(found_SMK: Floats, times_SMK: Floats, degree_SM: IndexArray) -> None:
    for sample in range(len(degree_SM)):
        for module in range(degree_SM.shape[1]):
            k = degree_SM[sample, module]
            if k >= 0:
                found_SMK[sample, module, k] = times_SMK[sample, module, k]


@compiled
def _narrow(times_SMK: Floats, degrees_K: IndexArray, has_SM: Flags, room: float, limit_s: float) -> bool:
    samples, modules, degrees = times_SMK.shape
    last = modules - 1
    least_SM = np.zeros((samples, modules))
    for _ in range(_ROUNDS):
        # Degrees that exceed the limit, with the least time of what runs before or behind.
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
                min_work = np.inf
                for k in range(degrees):
                    if times_SMK[sample, module, k] + other_s > limit_s:
                        times_SMK[sample, module, k] = np.inf
                    min_work = min(min_work, times_SMK[sample, module, k] * degrees_K[k])
                least_SM[sample, module] = min_work
                work += min_work
        # Degrees whose work exceeds the least of their module by more than there is room for.
        if not work <= room:
            return False
        for sample in range(samples):
            for module in range(modules):
                for k in range(degrees):
                    if times_SMK[sample, module, k] * degrees_K[k] > least_SM[sample, module] + room - work:
                        times_SMK[sample, module, k] = np.inf
    return True
