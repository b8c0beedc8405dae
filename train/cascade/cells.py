"""Our planner: samples in cells of neighbouring GPUs, annealed; then two neighbouring cells as one, annealed again.

Small cells are searched fast, and large ones can hold what fits into no small one.
"""

from collections.abc import Iterator

import numpy as np

from loader.arrays import Flags, Floats, Places
from train.cascade.annealing import Cooling, State, anneal
from train.cascade.draws import begun
from train.cascade.list_schedule import Tables
from train.cascade.narrowing import narrowed
from train.cascade.named import Timed, named
from train.cascade.problem import Cascade, Module, Problem
from train.cascade.schedule import Run, Schedule
from train.cascade.serial import MODULES, Scratch, Shape, lay

_FEW = 3.5  # samples in a cell, on average: with fewer there is too little to arrange
_NODE = 8  # GPUs of the smallest cells: groups within a node are cheap
_SLACK = 1.6  # of the mean number of samples, that a cell may hold
_HEATS = ((0.7, 0.07), (0.12, 0.02))  # at first and at last, of small cells and of pairs
_PARTS = (2, 2, 2, 2, 1, 4)
"""Of a cell, that a DiT begins with, search by search: halves mostly; the others help where there are few samples."""
_SHARE = 0.4  # of the moves that small cells get
_LATE = 0.03  # small cells need not try a degree with which a sample ends later than so much above the bound
_ENOUGH = 0.002  # above the bound; what is left is below the error of every cost model


def smallest_cell(problem: Problem) -> int:
    """GPUs of the small cells: a power of two, from a node on, with enough samples and room for each of them."""
    size = _NODE
    while size < max(_FEW * problem.gpus / problem.samples, _smallest(problem).max()):
        size *= 2
    return size if problem.gpus >= 2 * size else problem.gpus


def in_cells(
    problem: Problem, size: int, bound_s: float, limit_s: float, moves: int, searches: int, seed: int
) -> Schedule | None:
    """A schedule in cells, the last of which may be smaller; None where a sample does not fit.

    Args:
        problem: what is to be planned.
        size: GPUs of a small cell.
        bound_s: a lower bound of the makespan.
        moves: of all searches together.
        searches: each from a start of its own; the best counts.
        seed: of their random numbers; the same gives the same schedule.
    """
    size_C = np.array([min(size, problem.gpus - first) for first in range(0, problem.gpus, size)])
    dealt = _dealt(problem, size_C)
    if dealt is None:
        return None
    order_CN, count_C, cell_S = dealt
    scratch, bits = Scratch.of(problem.samples), begun(seed)
    best: tuple[State, Places] | None = None
    best_s = min(limit_s, bound_s * (1 + _LATE))
    import os
    BETTER=float(os.environ.get("BETTER","1e-3"))
    for search in range(searches):
        times_SMK = narrowed(problem, best_s * (1 - BETTER))
        if times_SMK is None:
            if best: break
            times_SMK = problem.times_SMK
        degree_SM = _degrees(problem, times_SMK, size_C[cell_S], _PARTS[search % len(_PARTS)], bound_s)
        state, found_C = State(order_CN.copy(), count_C.copy(), degree_SM), size_C
        for number, (heat, share) in enumerate(zip(_HEATS, (_SHARE, 1 - _SHARE), strict=True)):
            if number:
                state, found_C = _paired(problem, state, found_C, scratch)
            # With halves and wholes a cell is two stacks or one, which is what good schedules look like.
            stacks_K = np.isin(problem.degrees_K, (size // 2, size))
            tried_K = stacks_K if number == 0 else np.ones_like(stacks_K)
            tables = Tables(_tried(problem, times_SMK, state, tried_K), problem.degrees_K)
            cooling = Cooling(int(moves / searches * share), *heat, bound_s * (1 + _ENOUGH), bits)
            found_s = anneal(state, tables, found_C, bound_s, cooling, scratch)
            if not best: times_SMK = narrowed(problem, found_s); 
        if not best or found_s < best_s:
            best, best_s = (state, found_C), found_s
        if best_s <= bound_s * (1 + _ENOUGH):
            break
    return Schedule.of(_runs(problem, *best, scratch), problem.gpus) if best else None


def _smallest(problem: Problem) -> Places:
    """The lowest number of GPUs on which all modules of a sample can run, int64 [S]."""
    least_SM = np.where(problem.possible_SMK, problem.degrees_K, np.iinfo(np.int64).max).min(axis=2)
    smallest_S: Places = np.where(problem.has_SM, least_SM, 1).max(axis=1)
    return smallest_S


def _dealt(problem: Problem, size_C: Places) -> tuple[Places, Places, Places] | None:
    """Samples largest first into the cell with the least work per GPU, each as a chain of its modules.

    Returns:
        Orders and counts as in `State`, and the cell of each sample, int64 [S]; None where a sample does not fit.
    """
    room = int(problem.samples / len(size_C) * _SLACK) + 2
    work_S = problem.work_SMK[:, Module.DIT].min(axis=1)
    smallest_S = _smallest(problem)
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


def _degrees(problem: Problem, times_SMK: Floats, size_S: Places, parts: int, bound_s: float) -> Places:
    """For each DiT a part of its cell, or the lowest degree above with which its chain ends by the bound.

    Where there is none, the fastest. The other modules get their fastest degree below, or the fastest of all.
    Int64 [S, M].
    """
    here_SK = problem.degrees_K <= size_S[:, None]
    times_SMK = np.where(here_SK[:, None], times_SMK, np.inf)
    fastest_SMK = np.where(problem.has_SM[:, :, None], np.minimum.accumulate(times_SMK, axis=2), 0.0)
    chain_SK = times_SMK[:, Module.DIT] + fastest_SMK[:, : Module.DIT].sum(axis=1)
    good_SK = (chain_SK <= bound_s) & (parts * problem.degrees_K >= size_S[:, None])
    chosen_S = np.where(good_SK.any(axis=1), good_SK.argmax(axis=1), chain_SK.argmin(axis=1))
    below_SK = np.arange(len(problem.degrees_K)) <= chosen_S[:, None]
    low_SMK = np.where(below_SK[:, None], times_SMK, np.inf)
    low_SMK = np.where(np.isfinite(low_SMK).any(axis=2, keepdims=True), low_SMK, times_SMK)
    degree_SM = np.where(problem.has_SM, low_SMK.argmin(axis=2), -1)
    degree_SM[:, Module.DIT] = chosen_S
    return degree_SM


def _tried(problem: Problem, times_SMK: Floats, state: State, tried_K: Flags) -> Floats:
    """Times, without those of DiTs' degrees that are not to be tried; each keeps the degree that it has."""
    times_SMK = times_SMK.copy()
    own_S = np.arange(problem.samples)
    times_SMK[:, Module.DIT, ~tried_K] = np.inf
    for module in range(MODULES):
        degree_S=state.degree_SM[:,module]
        times_SMK[own_S, module, degree_S] = problem.times_SMK[own_S, module, degree_S]
    return times_SMK


def _paired(problem: Problem, state: State, size_C: Places, scratch: Scratch) -> tuple[State, Places]:
    """Each two neighbouring cells as one, the same schedule."""
    if len(size_C) == 1:
        return state, size_C
    order_CN, count_C, degree_SM = state
    _starts(problem, state, size_C, scratch)
    rows = []
    for first in range(0, len(size_C), 2):
        row_N = np.concatenate(
            [order_CN[cell, : count_C[cell]] for cell in range(first, min(first + 2, len(size_C)))]
        )
        rows.append(row_N[np.lexsort((row_N % MODULES, scratch.start_N[row_N]))])
    room = max(order_CN.shape[1], max(len(row_N) for row_N in rows) + MODULES)
    paired_CN = np.zeros((len(rows), room), np.uint32)
    for cell, row_N in enumerate(rows):
        paired_CN[cell, : len(row_N)] = row_N
    counts_C = np.array([len(row_N) for row_N in rows])
    return State(paired_CN, counts_C, degree_SM), np.add.reduceat(size_C, np.arange(0, len(size_C), 2))


def _starts(problem: Problem, state: State, size_C: Places, scratch: Scratch) -> None:
    """Finds the start of every cascade."""
    sample_S1, module_M = np.arange(problem.samples)[:, None], np.arange(MODULES)
    there_SM = problem.has_SM
    width_SM = np.where(there_SM, problem.degrees_K[state.degree_SM], 0)
    seconds_SM = np.where(there_SM, problem.times_SMK[sample_S1, module_M, state.degree_SM], 0.0)
    shape = Shape(width_SM.ravel(), seconds_SM.ravel())
    scratch.start_N[:] = 0.0
    for cell, size in enumerate(size_C.tolist()):
        lay(state.order_CN[cell], int(state.count_C[cell]), shape, size, np.inf, scratch)


def _runs(problem: Problem, state: State, size_C: Places, scratch: Scratch) -> Iterator[Run]:
    _starts(problem, state, size_C, scratch)
    for cell, end in enumerate(np.cumsum(size_C).tolist()):
        members = state.order_CN[cell, : state.count_C[cell]].tolist()
        timed = (
            Timed(float(scratch.start_N[number]), cascade, int(state.degree_SM[cascade]))
            for number in members
            for cascade in [Cascade(number // MODULES, Module(number % MODULES))]
            if state.degree_SM[cascade] >= 0
        )
        yield from named(problem, timed, range(end - int(size_C[cell]), end))
