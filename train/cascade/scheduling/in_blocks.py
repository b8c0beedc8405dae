"""Schedules whose cascades run on the blocks of a menu."""

from collections.abc import Iterable, Iterator

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.scheduling.serial import MODULES, CascadeTable, Cells, SerialScratch, lay

_TOGETHER_S = 1e-9  # slack within which GPUs of a finished cascade count as free
_TRIES = (
    1_000  # runs placed or taken back to keep all starts; where there is a placement there are mostly many
)


def onto_menu(problem: Problem, schedule: Schedule, menu: GroupMenu) -> Schedule | None:
    """Return a schedule with its order and degrees on groups of the menu; None if a degree has none.

    Starts stay where blocks can be found for all of them; otherwise cascades follow each other as early as the
    menu allows.
    """
    if not menu.strangers(schedule):
        return schedule
    cells = Cells.of(np.array([problem.gpus]), problem.degrees_K, menu)
    if (on_blocks := _with_blocks(problem, schedule, cells)) is not None:
        return on_blocks
    order = sorted(
        schedule.runs, key=lambda run: (run.start_s, run.cascade.module == Module.DIT, run.cascade)
    )
    degree_SM = np.full((problem.samples, MODULES), -1)
    degree_index = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
    for run in order:
        degree_SM[run.cascade] = degree_index[len(run.gpus)]
    order_N = np.array([MODULES * run.cascade.sample + run.cascade.module for run in order], np.uint32)
    scratch = SerialScratch.of(problem.samples, problem.gpus)
    cost_s = lay(order_N, len(order_N), table_of(problem, degree_SM), 0, cells, np.inf, scratch)
    if cost_s == np.inf:
        return None
    return Schedule.of(in_blocks(problem, order_N.tolist(), degree_SM, scratch), problem.gpus)


def _with_blocks(problem: Problem, schedule: Schedule, cells: Cells) -> Schedule | None:
    """Return the same runs on blocks; None if the search for them found none."""
    runs = schedule.runs
    degree_index = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
    k_P = np.array([degree_index[len(run.gpus)] for run in runs])
    start_P, end_P = np.array([run.start_s for run in runs]), np.array([run.end_s for run in runs])
    first_P = np.zeros(len(runs), np.int64)
    if not blocks_for(start_P, end_P, k_P, problem.degrees_K, cells, first_P):
        return None
    run_starts = zip(runs, first_P.tolist(), strict=True)
    return Schedule.of(
        (run._replace(gpus=tuple(range(first, first + len(run.gpus)))) for run, first in run_starts),
        schedule.gpus,
    )


@compiled
def blocks_for(
    start_P: Floats, end_P: Floats, k_P: IndexArray, degrees_K: IndexArray, cells: Cells, first_P: IndexArray
) -> bool:
    """Search blocks for runs that keep their times, in the only cell; a depth-first search of a few tries.

    Args:
        start_P: starts of the runs, rising.
        end_P: their ends.
        k_P: indices of their degrees.
        degrees_K: numbers of GPUs.
        cells: a single cell of all GPUs with its blocks.
        first_P: set to the first GPU of each run's block.

    Returns:
        False if none was found.
    """
    runs, gpus = len(start_P), cells.size_C[0]
    free_G, before_PG = np.zeros(gpus), np.zeros((runs, gpus))
    next_P = np.zeros(runs, np.int64)
    depth, tries = 0, 0
    next_P[0] = cells.offset_CK[0, k_P[0]]
    while depth >= 0:
        k = k_P[depth]
        width, start = degrees_K[k], -1
        # The next block of this run that is free when it starts.
        while start < 0 and next_P[depth] < cells.offset_CK[0, k + 1]:
            first = cells.block_B[next_P[depth]]
            next_P[depth] += 1
            busy_s = 0.0
            for gpu in range(first, first + width):
                busy_s = max(busy_s, free_G[gpu])
            if busy_s <= start_P[depth] + _TOGETHER_S:
                start = first
        tries += 1
        if tries > _TRIES:
            return False
        # Occupy it and go on to the next run, which begins with its first block.
        if start >= 0:
            first_P[depth] = start
            for gpu in range(start, start + width):
                before_PG[depth, gpu] = free_G[gpu]
                free_G[gpu] = end_P[depth]
            depth += 1
            if depth == runs:
                return True
            next_P[depth] = cells.offset_CK[0, k_P[depth]]
        else:
            # None: take back the run before, and try its next block.
            depth -= 1
            if depth >= 0:
                first = first_P[depth]
                for gpu in range(first, first + degrees_K[k_P[depth]]):
                    free_G[gpu] = before_PG[depth, gpu]
    return False


def table_of(problem: Problem, degree_SM: IndexArray) -> CascadeTable:
    """Return width and time of each cascade at its degree; -1 where a sample lacks the module."""
    sample_S1, module_M = np.arange(problem.samples)[:, None], np.arange(MODULES)
    has_SM = degree_SM >= 0
    width_SM = np.where(has_SM, problem.degrees_K[degree_SM], 0)
    seconds_SM = np.where(has_SM, problem.times_SMK[sample_S1, module_M, degree_SM], 0.0)
    return CascadeTable(width_SM.ravel(), seconds_SM.ravel(), np.where(has_SM, degree_SM, 0).ravel())


def in_blocks(
    problem: Problem, members: Iterable[int], degree_SM: IndexArray, scratch: SerialScratch
) -> Iterator[Run]:
    """Yield the runs of cascades ``MODULES * sample + module`` that `lay` has placed on blocks."""
    for n in members:
        cascade = Cascade(n // MODULES, Module(n % MODULES))
        k = int(degree_SM[cascade])
        if k >= 0:
            start_s, first = float(scratch.start_N[n]), int(scratch.first_N[n])
            end_s = start_s + float(problem.times_SMK[(*cascade, k)])
            yield Run(cascade, start_s, end_s, tuple(range(first, first + int(problem.degrees_K[k]))))
