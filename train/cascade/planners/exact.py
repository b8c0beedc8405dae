"""Exact search for few cascades: branch and bound over the ends of cascades; compiled.

In some shortest schedule every cascade starts at 0 or at the end of another one, since it could otherwise start
sooner. A branch starts a set of cascades with degrees and advances to the next end. It is cut if no
completion can beat the known schedule. Either a chain ends too late, or GPU-seconds spent (idle ones
included) plus the least remaining work exceed the limit. Four samples take about 10,000 branches, a
millisecond.
"""

from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.planners.pruning import narrow_degrees
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus
from reelweave.train.cascade.scheduling.in_blocks import blocks_for, in_blocks
from reelweave.train.cascade.scheduling.serial import MODULES, Cells, SerialScratch

_HALVINGS, _EACH = 8, 50_000  # searches for a bound, and branches per search
_MOST = 24  # maximum number of cascades for which such searches prove anything
_CLOSE = 1e-9  # relative gain below which schedules count as equal
_TOGETHER_S = 1e-9  # ends within this slack coincide


class Searched(NamedTuple):
    """Result of an exact search.

    Attributes:
        schedule: shortest schedule found; None if none beats the known one.
        complete: True if the search proved that no schedule is shorter.
        branches: number of branches visited.
        bound_s: no schedule with free groups is shorter, if the search is complete. Below the best schedule's
            makespan only where groups of the menu were found for none that are shorter.
    """

    schedule: Schedule | None
    complete: bool
    branches: int
    bound_s: float


def exact(problem: Problem, known_s: float, budget: int, menu: GroupMenu | None = None) -> Searched:
    """Search for the shortest schedule that beats a known one.

    Args:
        problem: planning problem.
        known_s: makespan of the known schedule.
        budget: maximum number of branches.
        menu: groups that cascades may have; None: any GPUs.
    """
    limit_s = known_s * (1 - _CLOSE)
    times_SMK = narrow_degrees(problem, limit_s)
    if times_SMK is None:
        return Searched(None, True, 0, known_s)
    if not (times_SMK > 0).all():
        return Searched(None, False, 0, 0.0)  # a cascade of zero duration has no end to branch at
    times_NK = times_SMK.reshape(-1, len(problem.degrees_K))
    start_N, k_N = np.zeros(len(times_NK)), np.full(len(times_NK), -1)
    tables = times_NK, problem.degrees_K, _twins(problem), problem.gpus
    cells = Cells.of(np.array([problem.gpus]), problem.degrees_K, menu)
    best = Best(start_N, k_N, np.zeros(len(times_NK), np.int64))
    found_s, branches, refused_s = _branch(*tables, cells, limit_s, budget, best)
    complete = branches <= budget
    if found_s >= limit_s:
        return Searched(None, complete, branches, min(known_s, refused_s))
    if menu is not None:
        scratch = SerialScratch.of(problem.samples, problem.gpus)
        scratch.start_N[:], scratch.first_N[:] = start_N, best.first_N
        members = np.flatnonzero(k_N >= 0).tolist()
        runs = in_blocks(problem, members, k_N.reshape(-1, MODULES), scratch)
        schedule = Schedule.of(runs, problem.gpus)
        return Searched(schedule, complete, branches, min(schedule.makespan_s, refused_s))
    timed = (
        TimedCascade(float(start_N[n]), Cascade(n // MODULES, Module(n % MODULES)), int(k_N[n]))
        for n in np.flatnonzero(k_N >= 0).tolist()
    )
    schedule = Schedule.of(assign_gpus(problem, timed, range(problem.gpus)), problem.gpus)
    return Searched(schedule, complete, branches, schedule.makespan_s)


def tighten_bound(problem: Problem, bound_s: float, known_s: float) -> float:
    """Return a lower bound of the makespan, by exact searches between a bound and a schedule that find nothing.

    Args:
        problem: planning problem.
        bound_s: known lower bound.
        known_s: makespan of a known schedule.
    """
    if problem.has_SM.sum() > _MOST or known_s <= bound_s:
        return bound_s
    searched = exact(problem, known_s, _HALVINGS * _EACH)
    if searched.complete:
        return searched.schedule.makespan_s if searched.schedule else known_s
    too_long_s = known_s
    for _ in range(_HALVINGS):
        middle_s = (bound_s + too_long_s) / 2
        searched = exact(problem, middle_s, _EACH)
        if searched.complete and not searched.schedule:
            bound_s = middle_s * (1 - _CLOSE)
        else:
            too_long_s = middle_s
    return bound_s


def _twins(problem: Problem) -> IndexArray:
    """Return for each cascade the one of a like sample that starts before it, or -1, int64 [S * M].

    Only the first module of a sample is ordered: renaming like samples orders one of them, not all.
    """
    twin_SM = np.full((problem.samples, MODULES), -1)
    last_of: dict[bytes, int] = {}
    for sample, times_MK in enumerate(problem.times_SMK):
        module = int(problem.has_SM[sample].argmax())
        before = last_of.get(times_MK.tobytes())
        if before is not None:
            twin_SM[sample, module] = MODULES * before + module
        last_of[times_MK.tobytes()] = sample
    return twin_SM.ravel()


class Best(NamedTuple):
    """Best schedule found so far.

    Attributes:
        start_N: start of each cascade.
        k_N: index of its degree; -1 where a sample lacks the module.
        first_N: first GPU of its block, with a menu.
    """

    start_N: Floats
    k_N: IndexArray
    first_N: IndexArray


@compiled
def _branch(
    times_NK: Floats,
    degrees_K: IndexArray,
    twin_N: IndexArray,
    gpus: int,
    cells: Cells,
    limit_s: float,
    budget: int,
    best: Best,
) -> tuple[float, int, float]:
    """Return the least makespan below the limit, else the limit; branches; the least for which no blocks were found.

    With more branches than the budget the search is not complete.
    """
    count, degrees = times_NK.shape
    least_N = np.empty(count)
    for n in range(count):
        least_N[n] = times_NK[n].min()
    order_P = _order_cascades(least_N)
    total = len(order_P)
    begun_N, chosen_N = np.zeros(count, np.bool_), np.full(count, -1)
    start_N, end_N = np.zeros(count), np.zeros(count)
    # Branches from the root to the current one: time, the end before it, GPU-seconds spent until now; free GPUs, those
    # left free from the end before, cascades that have begun; which one the branch starts, -1 where it goes on to the
    # next end; the next cascade and degree to try under it; whether the next end has been tried.
    depths = 2 * total + 2
    now_s_D, before_s_D, spent_D = np.zeros(depths), np.zeros(depths), np.zeros(depths)
    free_D, free_before_D, begun_D = _numbers(depths), _numbers(depths), _numbers(depths)
    cascade_D, place_D, k_D, went_on_D = (
        _numbers(depths),
        _numbers(depths),
        _numbers(depths),
        _numbers(depths),
    )
    before_s_D[0], free_D[0], cascade_D[0], k_D[0] = -1.0, gpus, -1, degrees - 1
    branches, entered, depth, refused_s = 0, True, 0, np.inf
    while depth >= 0:
        now_s, remaining_work = now_s_D[depth], 0.0
        if entered:
            branches += 1
            if branches > budget:
                break
            if begun_D[depth] < total:
                for dit in range(MODULES - 1, count, MODULES):
                    if begun_N[dit]:
                        continue
                    ready_s = now_s
                    for n in range(dit - MODULES + 1, dit):
                        if least_N[n] == np.inf:
                            continue
                        if begun_N[n]:
                            ready_s = max(ready_s, end_N[n])
                            continue
                        ready_s = max(ready_s, now_s + least_N[n])
                        within_s, min_work = limit_s - now_s - least_N[dit], np.inf
                        for k in range(degrees):
                            if times_NK[n, k] < within_s:
                                min_work = min(min_work, times_NK[n, k] * degrees_K[k])
                        remaining_work += min_work
                    within_s, min_work = limit_s - ready_s, np.inf
                    for k in range(degrees):
                        if times_NK[dit, k] < within_s:
                            min_work = min(min_work, times_NK[dit, k] * degrees_K[k])
                    remaining_work += min_work
                    if remaining_work == np.inf:
                        break
            else:
                remaining_work = np.inf  # there is nothing to branch at
                makespan_s = 0.0
                for n in order_P:
                    makespan_s = max(makespan_s, end_N[n])
                if makespan_s < limit_s:
                    fits = len(cells.block_B) == 0
                    if not fits:
                        by_start_P = order_P.copy()
                        _sort(by_start_P, start_N)
                        k_P, first_P = _numbers(total), _numbers(total)
                        starts_P, ends_P = np.zeros(total), np.zeros(total)
                        for at in range(total):
                            n = by_start_P[at]
                            starts_P[at], ends_P[at], k_P[at] = (
                                start_N[n],
                                end_N[n],
                                chosen_N[n],
                            )
                        fits = blocks_for(starts_P, ends_P, k_P, degrees_K, cells, first_P)
                        if fits:
                            for at in range(total):
                                best.first_N[by_start_P[at]] = first_P[at]
                        else:
                            refused_s = min(refused_s, makespan_s)
                    if fits:
                        limit_s = makespan_s * (1 - _CLOSE)
                        for n in range(count):
                            best.start_N[n], best.k_N[n] = start_N[n], chosen_N[n]
        cut = spent_D[depth] + remaining_work > gpus * limit_s
        under = depth + 1
        position, k = total, -1
        if not cut:
            position, k, free = place_D[depth], k_D[depth], free_D[depth]
            before_s, free_before = before_s_D[depth], free_before_D[depth]
            has_branch = False
            while position < total:
                n = order_P[position]
                if not begun_N[n] and (twin_N[n] < 0 or begun_N[twin_N[n]]):
                    dit = n - n % MODULES + MODULES - 1
                    ready_s, after_s = 0.0, least_N[dit]
                    if n == dit:
                        after_s = 0.0
                        for needed in range(dit - MODULES + 1, dit):
                            if least_N[needed] < np.inf:
                                ready_s = max(ready_s, end_N[needed] if begun_N[needed] else np.inf)
                    if ready_s <= now_s + _TOGETHER_S:
                        # With GPUs that were free all the time it could have started at the end before.
                        too_few = free_before if ready_s <= before_s + _TOGETHER_S else 0
                        while k >= 0:
                            in_time = now_s + times_NK[n, k] + after_s < limit_s
                            if too_few < degrees_K[k] <= free and in_time:
                                has_branch = True
                                break
                            k -= 1
                    if has_branch:
                        break
                position += 1
                k = degrees - 1
            place_D[depth], k_D[depth] = position, k - 1
        if position < total:
            n, width = order_P[position], degrees_K[k]
            seconds = times_NK[n, k]
            begun_N[n], chosen_N[n] = True, k
            start_N[n], end_N[n] = now_s, now_s + seconds
            now_s_D[under], before_s_D[under] = now_s, before_s_D[depth]
            free_D[under], free_before_D[under] = free_D[depth] - width, free_before_D[depth]
            spent_D[under] = spent_D[depth] + width * seconds
            begun_D[under], cascade_D[under], place_D[under] = begun_D[depth] + 1, n, position + 1
        else:
            next_s = np.inf
            if not cut and not went_on_D[depth]:
                went_on_D[depth] = True
                for n in range(count):
                    if begun_N[n] and end_N[n] > now_s + _TOGETHER_S:
                        next_s = min(next_s, end_N[n])
            if next_s == np.inf:
                if cascade_D[depth] >= 0:
                    begun_N[cascade_D[depth]] = False
                depth, entered = depth - 1, False
                continue
            free = free_D[depth]
            for n in range(count):
                if begun_N[n] and now_s + _TOGETHER_S < end_N[n] <= next_s + _TOGETHER_S:
                    free += degrees_K[chosen_N[n]]
            now_s_D[under], before_s_D[under] = next_s, now_s
            free_D[under], free_before_D[under] = free, free_D[depth]
            spent_D[under] = spent_D[depth] + free_D[depth] * (next_s - now_s)
            begun_D[under], cascade_D[under], place_D[under] = begun_D[depth], -1, 0
        k_D[under], went_on_D[under] = degrees - 1, False
        depth, entered = under, True
    return limit_s, branches, refused_s


@compiled
def _order_cascades(least_N: Floats) -> IndexArray:
    """Return the existing cascades, longest first; equal ones by number."""
    key_N, order_P, total = np.zeros(len(least_N)), _numbers(len(least_N)), 0
    for n in range(len(least_N)):
        if least_N[n] < np.inf:
            key_N[n], order_P[total] = -least_N[n], n
            total += 1
    order_P = order_P[:total]
    _sort(order_P, key_N)
    return order_P


@compiled
def _sort(number_P: IndexArray, key_N: Floats) -> None:
    """Sort some numbers by their keys, in place; equal ones keep their order.

    Numba compiles its own sorts, and lists of numbers as indices, for four seconds.
    """
    for end in range(1, len(number_P)):
        n, at = number_P[end], end
        while at > 0 and key_N[number_P[at - 1]] > key_N[n]:
            number_P[at] = number_P[at - 1]
            at -= 1
        number_P[at] = n


@compiled
def _numbers(count: int) -> IndexArray:
    return np.zeros(count, np.int64)
