"""Our planner for the regime that matters: samples in cells of neighbouring GPUs, annealed (`annealing`)."""

import numpy as np

from loader.arrays import Places
from train.cascade.annealing import Cooling, State, anneal
from train.cascade.bound import lower_bound
from train.cascade.list_schedule import Choice, Scratch, Tables, runs
from train.cascade.problem import Module, Problem
from train.cascade.schedule import Schedule

_FEW = 3.5  # samples in a cell, on average: with fewer there is too little to arrange
_SLACK = 1.6  # of the mean number of samples, that a cell may hold
_HEAT = (0.3, 0.03)
_ENOUGH = 0.002  # above the bound; what is left is below the error of every cost model


def sizes(problem: Problem) -> list[int]:
    """GPUs of the cells that are worth trying: powers of two from a node of 8 on, in which every sample fits.

    The smallest with enough samples, and the next one where they are few; all GPUs where even those hold too few.
    """
    enough = _FEW * problem.gpus / problem.samples
    size = 8
    while size < max(enough, _smallest(problem).max()):
        size *= 2
    few = size * problem.samples < 2 * _FEW * problem.gpus
    return sorted({min(tried, problem.gpus) for tried in (size, 2 * size)[: 1 + few]})


def in_cells(problem: Problem, size: int, degree: int, moves: int, seed: int) -> Schedule | None:
    """A schedule in cells of so many GPUs, the last of which may be smaller; None where a sample does not fit.

    Args:
        problem: what is to be planned.
        size: GPUs of a cell.
        degree: that the search begins with, such as that of the best static plan.
        moves: of the annealing.
        seed: of its random numbers; the same gives the same schedule.
    """
    size_C = np.array([min(size, problem.gpus - first) for first in range(0, problem.gpus, size)])
    longest = int(problem.samples / len(size_C) * _SLACK) + 2
    bound_s = lower_bound(problem)
    state = _begin(problem, size_C, longest, degree, bound_s)
    if state is None:
        return None
    tables, scratch = Tables(problem.times_SMK, problem.degrees_K), Scratch.of(problem)
    cooling = Cooling(moves, *_HEAT, bound_s * (1 + _ENOUGH), seed)
    anneal(state, tables, size_C, bound_s, cooling, scratch)
    ends = np.cumsum(size_C).tolist()
    found = [
        run
        for members_P, count, size, end in zip(
            state.members_CP, state.count_C, size_C.tolist(), ends, strict=True
        )
        for run in runs(problem, members_P[:count], state.choice, range(end - size, end))
    ]
    return Schedule.of(found, problem.gpus)


def _smallest(problem: Problem) -> Places:
    """The lowest number of GPUs on which all modules of a sample can run, int64 [S]."""
    least_SM = np.where(problem.possible_SMK, problem.degrees_K, np.iinfo(np.int64).max).min(axis=2)
    smallest_S: Places = np.where(problem.has_SM, least_SM, 1).max(axis=1)
    return smallest_S


def _begin(problem: Problem, size_C: Places, longest: int, degree: int, bound_s: float) -> State | None:
    """Samples largest first into the cell with the least work per GPU, each."""
    work_S = problem.work_SMK[:, Module.DIT].min(axis=1)
    smallest_S = _smallest(problem)
    members_CP = np.zeros((len(size_C), longest), np.int64)
    count_C, load_C = np.zeros(len(size_C), np.int64), np.zeros(len(size_C))
    degree_SM = np.full((problem.samples, len(Module)), -1, np.int64)
    urgency_SM = work_S[:, None] * (1 + 1e-6 * np.arange(len(Module)))
    for sample in np.lexsort((-work_S, -smallest_S)).tolist():
        open_C = (count_C < longest) & (size_C >= smallest_S[sample])
        if not open_C.any():
            return None
        cell = int(np.where(open_C, load_C / size_C, np.inf).argmin())
        members_CP[cell, count_C[cell]] = sample
        count_C[cell] += 1
        load_C[cell] += work_S[sample]
        degree_SM[sample] = _degrees(problem, sample, int(size_C[cell]), degree, bound_s)
    return State(members_CP, count_C, Choice(degree_SM, urgency_SM))


def _degrees(problem: Problem, sample: int, size: int, degree: int, bound_s: float) -> Places:
    """For the DiT the wanted degree, or the lowest one above with which its chain ends by the bound, or the fastest.

    The other modules get the same one, or their fastest below.
    """
    possible_MK = problem.possible_SMK[sample] & (problem.degrees_K <= size)
    times_MK = np.where(possible_MK, problem.times_SMK[sample], np.inf)
    others = [module for module in Module if module is not Module.DIT and problem.has_SM[sample, module]]
    chain_K = times_MK[Module.DIT] + sum(np.minimum.accumulate(times_MK[module]) for module in others)
    good_K = (chain_K <= bound_s) & (problem.degrees_K >= degree)
    chosen = int(good_K.argmax() if good_K.any() else chain_K.argmin())
    degree_M = np.full(len(Module), -1, np.int64)
    degree_M[Module.DIT] = chosen
    for module in others:
        below_K = times_MK[module, : chosen + 1]
        degree_M[module] = int((below_K if np.isfinite(below_K).any() else times_MK[module]).argmin())
    return degree_M
