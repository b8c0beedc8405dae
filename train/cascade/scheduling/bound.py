"""Lower bound on the makespan of any schedule."""

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.problem import Problem

_STEPS = 40  # halvings of the interval


def lower_bound(problem: Problem) -> float:
    """Return the dual bound in seconds: the least T at which the cheapest degrees fit into T on all GPUs.

    In a schedule of makespan T no chain (other modules, then the DiT) is longer than T. Its work is thus at
    least that of the cheapest degrees with such chains, and at most T times the number of GPUs. Source:
    Turek, Wolf, Yu, "Approximate algorithms for scheduling parallelizable tasks", 1992.
    """
    if not problem.samples:
        return 0.0
    return float(_least(problem.times_SMK, problem.work_SMK, problem.has_SM, problem.gpus))


@compiled
def _least(times_SMK: Floats, work_SMK: Floats, has_SM: Flags, gpus: int) -> float:
    low, high = 0.0, 1.0
    while _work(times_SMK, work_SMK, has_SM, high).sum() > gpus * high:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _work(times_SMK, work_SMK, has_SM, middle).sum() <= gpus * middle:
            high = middle
        else:
            low = middle
    return low


@compiled
def _work(times_SMK: Floats, work_SMK: Floats, has_SM: Flags, limit_s: float) -> Floats:
    samples, modules, degrees = times_SMK.shape
    least_S = np.full(samples, np.inf)
    last = modules - 1
    for sample in range(samples):
        for last_k in range(degrees):
            left_s = limit_s - times_SMK[sample, last, last_k]
            if left_s < 0:
                continue
            work = work_SMK[sample, last, last_k]
            for module in range(last):
                if has_SM[sample, module]:
                    cheapest = np.inf
                    for k in range(degrees):
                        if times_SMK[sample, module, k] <= left_s:
                            cheapest = min(cheapest, work_SMK[sample, module, k])
                    work += cheapest
            least_S[sample] = min(least_S[sample], work)
    return least_S
