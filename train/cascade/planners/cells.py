"""Main planner: anneals samples in cells of adjacent GPUs, then pairs of cells.

Small cells are searched fast; large ones hold cascades that fit into no small one.
"""

from collections.abc import Iterator

import numpy as np

from loader.base.arrays import Places
from train.cascade.planners.annealing import Cooling, State, anneal
from train.cascade.planners.initial_states import dealt, degrees, smallest
from train.cascade.planners.pruning import narrowed, tried
from train.cascade.problem import Cascade, Module, Problem
from train.cascade.schedule import Run, Schedule
from train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus
from train.cascade.scheduling.list_schedule import Tables
from train.cascade.scheduling.random_bits import seeded
from train.cascade.scheduling.serial import MODULES, CascadeTable, SerialScratch, lay

_FEW = 3.5  # mean samples per cell; with fewer there is too little to arrange
_NODE = 8  # GPUs of the smallest cells: groups within a node are cheap
Phases = tuple[tuple[float, tuple[float, float]], ...]
"""Share of moves, first and last temperature, for small cells and for pairs."""
COLD: Phases = ((0.4, (0.7, 0.07)), (0.6, (0.12, 0.02)))
HOT: Phases = ((0.4, (15.0, 0.5)), (0.6, (1.0, 0.15)))
"""Temperatures for few samples, where each move changes the makespan by percents and a cold search is stuck."""
_PARTS = (2, 2, 2, 2, 1, 4)
"""Initial DiT groups per cell in each search: mostly halves; 1 and 4 help with few samples."""
_LATE = 0.03  # small cells skip degrees that end later than this share above the bound
_ENOUGH = 0.002  # share above the bound at which to stop, below the error of any cost model
_GAIN = 0.001  # share of the makespan that a further search must gain


def smallest_cell(problem: Problem) -> int:
    """Return the size of small cells: a power of two, at least a node, with enough samples and space for each."""
    size = _NODE
    while size < max(_FEW * problem.gpus / problem.samples, smallest(problem).max()):
        size *= 2
    return size if problem.gpus >= 2 * size else problem.gpus


def in_cells(
    problem: Problem,
    size: int,
    bound_s: float,
    known_s: float,
    moves: int,
    searches: int,
    seed: int,
    stacked: bool = True,
    phases: Phases = COLD,
) -> Schedule | None:
    """Return a schedule in cells, the last of which may be smaller.

    Args:
        problem: planning problem.
        size: GPUs of a small cell.
        bound_s: lower bound of the makespan.
        known_s: makespan of a known schedule, or infinite.
        moves: number of moves of all searches together.
        searches: number of searches from different starts; the best counts.
        seed: seed of the random numbers; equal seeds give equal schedules.
        stacked: restrict DiTs of small cells to half a cell, a whole cell and their initial degree.
        phases: moves and temperatures of each search.

    Returns:
        The schedule; None if a sample does not fit or nothing noticeably shorter than ``known_s`` was
        found.
    """
    size_C = np.array([min(size, problem.gpus - first) for first in range(0, problem.gpus, size)])
    begun = dealt(problem, size_C)
    if begun is None:
        return None
    order_CN, count_C, cell_S = begun
    # With halves and wholes a cell is two stacks or one, as in good schedules.
    stacks_K = (problem.degrees_K == size // 2) | (problem.degrees_K == size)
    all_K = np.ones_like(stacks_K)
    stacks_K = stacks_K if stacked else all_K
    few, many = (
        Cooling(int(moves / searches * share), *heat, bound_s * (1 + _ENOUGH)) for share, heat in phases
    )
    scratch, bits = SerialScratch.of(problem.samples), seeded(seed)
    best: tuple[State, Places] | None = None
    best_s = known_s
    for search in range(searches):
        times_SMK = narrowed(problem, min(bound_s * (1 + _LATE), best_s * (1 - _GAIN)))
        if times_SMK is None:
            times_SMK = narrowed(problem, best_s * (1 - _GAIN))
        if times_SMK is None:
            break
        parts = _PARTS[search % len(_PARTS)]
        degree_SM = degrees(problem, times_SMK, size_C[cell_S], parts, bound_s)
        state = State(order_CN.copy(), count_C.copy(), degree_SM)
        tables = Tables(tried(problem, times_SMK, degree_SM, stacks_K), problem.degrees_K)
        found_s = anneal(state, tables, size_C, bound_s, few, bits, scratch)
        state, pair_C = _paired(problem, state, size_C, scratch)
        times_SMK = narrowed(problem, min(found_s, best_s) * (1 - _GAIN))
        if times_SMK is not None:
            tables = Tables(tried(problem, times_SMK, degree_SM, all_K), problem.degrees_K)
            found_s = anneal(state, tables, pair_C, bound_s, many, bits, scratch)
        if found_s < best_s:
            best, best_s = (state, pair_C), found_s
        if best_s <= bound_s * (1 + _ENOUGH):
            break
    return Schedule.of(_runs(problem, *best, scratch), problem.gpus) if best else None


def _paired(problem: Problem, state: State, size_C: Places, scratch: SerialScratch) -> tuple[State, Places]:
    """Merge pairs of adjacent cells without changing the schedule."""
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


def _starts(problem: Problem, state: State, size_C: Places, scratch: SerialScratch) -> None:
    """Compute the start of every cascade into the buffers."""
    sample_S1, module_M = np.arange(problem.samples)[:, None], np.arange(MODULES)
    there_SM = problem.has_SM
    width_SM = np.where(there_SM, problem.degrees_K[state.degree_SM], 0)
    seconds_SM = np.where(there_SM, problem.times_SMK[sample_S1, module_M, state.degree_SM], 0.0)
    shape = CascadeTable(width_SM.ravel(), seconds_SM.ravel())
    scratch.start_N[:] = 0.0
    for cell, size in enumerate(size_C.tolist()):
        lay(state.order_CN[cell], int(state.count_C[cell]), shape, size, np.inf, scratch)


def _runs(problem: Problem, state: State, size_C: Places, scratch: SerialScratch) -> Iterator[Run]:
    _starts(problem, state, size_C, scratch)
    for cell, end in enumerate(np.cumsum(size_C).tolist()):
        members = state.order_CN[cell, : state.count_C[cell]].tolist()
        timed = (
            TimedCascade(float(scratch.start_N[number]), cascade, int(state.degree_SM[cascade]))
            for number in members
            for cascade in [Cascade(number // MODULES, Module(number % MODULES))]
            if state.degree_SM[cascade] >= 0
        )
        yield from assign_gpus(problem, timed, range(end - int(size_C[cell]), end))
