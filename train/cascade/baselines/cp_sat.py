"""Reference solver: Arachne's MILP (Eqs. 1-7) as a constraint program for OR-tools' CP-SAT.

A cascade is one optional interval for each degree, of which exactly one is present (Eqs. 2, 5; degrees that do
not fit are left out, Eq. 6). A DiT starts after its modules (4). A cumulative constraint limits the GPUs (7);
as published, that constraint is not linear, since the set of running cascades depends on the variables. The
objective is the makespan (1, 3).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from reelweave.loader.errors import RunError
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus
from reelweave.train.cascade.scheduling.bound import lower_bound

_TICKS = 1_000_000  # ticks in the hint's makespan; durations are rounded up to whole ticks


class SolverResult(NamedTuple):
    """Result of the reference solver.

    Attributes:
        schedule: best schedule found; the hint if none is better.
        bound_s: proven lower bound of the makespan.
        optimal: True if the schedule is proven optimal within a millionth per cascade.
    """

    schedule: Schedule
    bound_s: float
    optimal: bool


def referee(problem: Problem, hint: Schedule, limit_s: float = 20.0, seed: int = 0) -> SolverResult:
    """Search for a shorter schedule than a given one.

    Args:
        problem: planning problem.
        hint: valid schedule to start from.
        limit_s: limit in the solver's deterministic seconds, the same on every machine.
        seed: seed of the search.
    """
    from ortools.sat.python import cp_model

    tick_s = hint.makespan_s / _TICKS
    # Rounding up lengthens the hint by at most a tick for each cascade of its longest chain.
    horizon = _TICKS + len(hint.runs)
    model = cp_model.CpModel()
    makespan = model.new_int_var(math.floor(lower_bound(problem) / tick_s), horizon, "makespan")
    starts, ends, intervals, widths, work = {}, {}, [], [], []
    chosen: dict[Cascade, dict[int, Any]] = {}
    for cascade in problem.cascades():
        starts[cascade] = model.new_int_var(0, horizon, "start")
        ends[cascade] = model.new_int_var(0, horizon, "end")
        model.add(ends[cascade] <= makespan)
        chosen[cascade] = {}
        for k in np.flatnonzero(problem.possible_SMK[cascade]).tolist():
            ticks = math.ceil(problem.times_SMK[*cascade, k] / tick_s)
            if ticks > horizon:
                continue
            presence = model.new_bool_var("here")
            width = int(problem.degrees_K[k])
            intervals.append(
                model.new_optional_interval_var(starts[cascade], ticks, ends[cascade], presence, "run")
            )
            widths.append(width)
            work.append(presence * (ticks * width))
            chosen[cascade][k] = presence
        model.add_exactly_one(chosen[cascade].values())
    for cascade in problem.cascades():
        if cascade.module is not Module.DIT:
            model.add(starts[Cascade(cascade.sample, Module.DIT)] >= ends[cascade])
    model.add_cumulative(intervals, widths, problem.gpus)
    model.add(sum(work) <= problem.gpus * makespan)
    for run in hint.runs:
        model.add_hint(starts[run.cascade], round(run.start_s / tick_s))
        for k, presence in chosen[run.cascade].items():
            model.add_hint(presence, int(problem.degrees_K[k]) == len(run.gpus))
    model.minimize(makespan)

    solver = cp_model.CpSolver()
    # One worker and a deterministic limit make the result reproducible.
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = limit_s
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status in (cp_model.MODEL_INVALID, cp_model.INFEASIBLE):
        raise RunError(
            f"the constraint program is {solver.status_name(status)}: the hint is no valid schedule"
        )
    # Rounding lengthens any schedule by at most a tick for each cascade.
    bound_s = max((solver.best_objective_bound - len(hint.runs)) * tick_s, lower_bound(problem))
    if status == cp_model.UNKNOWN:
        return SolverResult(hint, bound_s, False)
    timed = (
        TimedCascade(solver.value(starts[cascade]) * tick_s, cascade, k)
        for cascade, heres in chosen.items()
        for k, presence in heres.items()
        if solver.value(presence)
    )
    solution = Schedule.of(assign_gpus(problem, timed, range(problem.gpus)), problem.gpus)
    best = min(solution, hint, key=lambda schedule: schedule.makespan_s)
    return SolverResult(best, bound_s, status == cp_model.OPTIMAL)
