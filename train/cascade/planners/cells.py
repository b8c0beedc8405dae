"""Main planner: anneals samples in cells of adjacent GPUs, then pairs of cells.

Small cells are searched fast; large ones hold cascades that fit into no small one.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.planners.annealing import Cooling, State, anneal
from reelweave.train.cascade.planners.initial_states import dealt, degrees, smallest
from reelweave.train.cascade.planners.pruning import narrow_degrees, times_to_try
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus
from reelweave.train.cascade.scheduling.in_blocks import in_blocks, table_of
from reelweave.train.cascade.scheduling.list_schedule import Tables
from reelweave.train.cascade.scheduling.random_bits import seed_bits
from reelweave.train.cascade.scheduling.serial import MODULES, Cells, SerialScratch, lay

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


class Groups(NamedTuple):
    """Groups that cascades may have.

    Attributes:
        menu: groups of a menu; None: any GPUs.
        slow_G: times that each GPU takes of the others' time; needs a menu; None: all are alike.
    """

    menu: GroupMenu | None = None
    slow_G: Floats | None = None


FREE = Groups()
"""Any GPUs, all alike."""


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
    groups: Groups = FREE,
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
        groups: groups that cascades may have.
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
    scratch, bits = SerialScratch.of(problem.samples, problem.gpus), seed_bits(seed)
    cells = Cells.of(size_C, problem.degrees_K, *groups)
    pairs = Cells.of(np.add.reduceat(size_C, np.arange(0, len(size_C), 2)), problem.degrees_K, *groups)
    best: State | None = None
    best_s = known_s
    for search in range(searches):
        times_SMK = narrow_degrees(problem, min(bound_s * (1 + _LATE), best_s * (1 - _GAIN)))
        if times_SMK is None:
            times_SMK = narrow_degrees(problem, best_s * (1 - _GAIN))
        if times_SMK is None:
            break
        parts = _PARTS[search % len(_PARTS)]
        degree_SM = degrees(problem, times_SMK, size_C[cell_S], parts, bound_s)
        state = State(order_CN.copy(), count_C.copy(), degree_SM)
        tables = Tables(times_to_try(problem, times_SMK, degree_SM, stacks_K), problem.degrees_K)
        found_s = anneal(state, tables, cells, bound_s, few, bits, scratch)
        state = _merge_pairs(problem, state, cells, scratch)
        times_SMK = narrow_degrees(problem, min(found_s, best_s) * (1 - _GAIN))
        if times_SMK is not None:
            tables = Tables(times_to_try(problem, times_SMK, degree_SM, all_K), problem.degrees_K)
            found_s = anneal(state, tables, pairs, bound_s, many, bits, scratch)
        if found_s < best_s:
            best, best_s = state, found_s
        if best_s <= bound_s * (1 + _ENOUGH):
            break
    return Schedule.of(_runs(problem, best, pairs, scratch), problem.gpus) if best else None


def _merge_pairs(problem: Problem, state: State, cells: Cells, scratch: SerialScratch) -> State:
    """Merge pairs of adjacent cells without changing the schedule."""
    count = len(cells.size_C)
    if count == 1:
        return state
    order_CN, count_C, degree_SM = state
    _starts(problem, state, cells, scratch)
    rows = []
    for first in range(0, count, 2):
        row_N = np.concatenate(
            [order_CN[cell, : count_C[cell]] for cell in range(first, min(first + 2, count))]
        )
        rows.append(row_N[np.lexsort((row_N % MODULES, scratch.start_N[row_N]))])
    room = max(order_CN.shape[1], max(len(row_N) for row_N in rows) + MODULES)
    paired_CN = np.zeros((len(rows), room), np.uint32)
    for cell, row_N in enumerate(rows):
        paired_CN[cell, : len(row_N)] = row_N
    return State(paired_CN, np.array([len(row_N) for row_N in rows]), degree_SM)


def _starts(problem: Problem, state: State, cells: Cells, scratch: SerialScratch) -> None:
    """Compute the start of every cascade into the buffers."""
    shape = table_of(problem, state.degree_SM)
    scratch.start_N[:] = 0.0
    for cell in range(len(cells.size_C)):
        lay(state.order_CN[cell], int(state.count_C[cell]), shape, cell, cells, np.inf, scratch)


def _runs(problem: Problem, state: State, cells: Cells, scratch: SerialScratch) -> Iterator[Run]:
    _starts(problem, state, cells, scratch)
    for cell, (first, size) in enumerate(zip(cells.first_C.tolist(), cells.size_C.tolist(), strict=True)):
        members = state.order_CN[cell, : state.count_C[cell]].tolist()
        if len(cells.block_B):
            yield from in_blocks(problem, members, state.degree_SM, scratch)
            continue
        timed = (
            TimedCascade(float(scratch.start_N[n]), cascade, int(state.degree_SM[cascade]))
            for n in members
            for cascade in [Cascade(n // MODULES, Module(n % MODULES))]
            if state.degree_SM[cascade] >= 0
        )
        yield from assign_gpus(problem, timed, range(first, first + size))
