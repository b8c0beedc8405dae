"""Initial states of searches: samples assigned to cells, and their degrees."""

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray, IntegerArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.scheduling.serial import MODULES

_SLACK = 1.6  # capacity of a cell relative to the mean number of samples


def smallest(problem: Problem) -> IndexArray:
    """Return the least number of GPUs on which all modules of a sample can run, int64 [S]."""
    least_SM = np.where(problem.possible_SMK, problem.degrees_K, np.iinfo(np.int64).max).min(axis=2)
    smallest_S: IndexArray = np.where(problem.has_SM, least_SM, 1).max(axis=1)
    return smallest_S


def dealt(problem: Problem, size_C: IndexArray) -> tuple[IntegerArray, IndexArray, IndexArray] | None:
    """Assign samples, largest first, to the cell with the least work per GPU, each as a chain of its modules.

    Returns:
        Orders and counts as in `State`, and the cell of each sample, int64 [S]; None if a sample does not
        fit.
    """
    room = int(problem.samples / len(size_C) * _SLACK) + 2
    smallest_S, work_S = smallest(problem), problem.work_SMK[:, Module.DIT].min(axis=1)
    order_CN = np.zeros((len(size_C), MODULES * room), np.uint32)
    count_C, load_C = np.zeros(len(size_C), np.int64), np.zeros(len(size_C))
    cell_S = np.zeros(problem.samples, np.int64)
    for sample in np.lexsort((-work_S, -smallest_S)).tolist():
        open_C = (count_C < MODULES * room) & (size_C >= smallest_S[sample])
        if not open_C.any():
            return None
        cell = int(np.where(open_C, load_C / size_C, np.inf).argmin())
        order_CN[cell, count_C[cell] :][:MODULES] = MODULES * sample + np.arange(MODULES)
        count_C[cell] += MODULES
        load_C[cell] += work_S[sample]
        cell_S[sample] = cell
    return order_CN, count_C, cell_S


def degrees(problem: Problem, times_SMK: Floats, size_S: IndexArray, parts: int, end_s: float) -> IndexArray:
    """Choose for each DiT a part of its cell, or the lowest higher degree whose chain ends in time.

    Falls back to the fastest degree. The other modules get their fastest degree up to the DiT's, or the fastest
    of all.

    Args:
        problem: planning problem.
        times_SMK: times of candidate degrees; where a cell allows none of them, any degree that it allows.
        size_S: GPUs of each sample's cell.
        parts: number of parts per cell.
        end_s: deadline of chains.

    Returns:
        Indices of degrees, int64 [S, M].
    """
    tables = problem.times_SMK, times_SMK, problem.degrees_K
    return _degrees(*tables, problem.has_SM, size_S, parts, end_s)


@compiled
def _degrees(
    all_SMK: Floats,
    times_SMK: Floats,
    degrees_K: IndexArray,
    has_SM: Flags,
    size_S: IndexArray,
    parts: int,
    end_s: float,
) -> IndexArray:
    samples, modules, _ = times_SMK.shape
    degree_SM = np.full((samples, modules), -1)
    last = modules - 1
    for sample in range(samples):
        num_degrees = 0  # number of degrees that the cell allows
        while num_degrees < len(degrees_K) and degrees_K[num_degrees] <= size_S[sample]:
            num_degrees += 1
        times_MK = times_SMK[sample, :, :num_degrees]
        before_s = 0.0
        for module in range(modules):
            if has_SM[sample, module] and times_MK[module].min() == np.inf:
                times_MK = all_SMK[sample, :, :num_degrees]
        for module in range(last):
            if has_SM[sample, module]:
                before_s = max(before_s, times_MK[module].min())
        chosen = -1
        for k in range(num_degrees):
            in_time = times_MK[last, k] + before_s <= end_s and parts * degrees_K[k] >= size_S[sample]
            if in_time and chosen < 0:
                chosen = k
        if chosen < 0:
            chosen = times_MK[last].argmin()
        degree_SM[sample, last] = chosen
        for module in range(last):
            if has_SM[sample, module]:
                below_K = times_MK[module, : chosen + 1]
                own_K = below_K if below_K.min() < np.inf else times_MK[module]
                degree_SM[sample, module] = own_K.argmin()
    return degree_SM
