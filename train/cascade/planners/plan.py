"""Planner of training: never worse than the best static plan, and static if little is gained."""

from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.errors import RunError
from reelweave.train.cascade.baselines.flexsp import flexsp
from reelweave.train.cascade.baselines.genetic import genetic
from reelweave.train.cascade.baselines.sweep import sweep
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.planners.cells import COLD, HOT, Groups, in_cells, smallest_cell
from reelweave.train.cascade.planners.exact import exact
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.scheduling.in_blocks import onto_menu
from reelweave.train.cascade.scheduling.static import best_static

WORTH = 0.02
"""Relative gain below which the static plan is kept, since it needs no handoffs and no groups."""
_MOVES, _POWER = 2_200, 0.8  # moves of the search: factor and exponent of the number of samples
_CROWD = (
    10  # samples in a pair of cells above which there are fewer moves: slower to evaluate, easier to balance
)
_SEARCHES = ((8, 8), (16, 2))  # (samples, searches): few samples depend on chance; above, one search
_BRANCHES, _CASCADES = (
    200_000,
    10,
)  # branches of the exact search, and cascades up to which it is likely complete
FEW, _FAR = 8, 0.02  # samples, and gap to the bound above which all other planners run, too
_AGAIN = ((60_000, 12, COLD), (90_000, 6, HOT))  # moves, searches and temperatures of these further searches


class CascadePlan(NamedTuple):
    """A schedule with its baseline and its lower bound.

    Attributes:
        schedule: chosen schedule.
        searched: best schedule of the search; None if it found none.
        static: best static schedule; None if no degree suits all samples.
        bound_s: lower bound of any makespan.
    """

    schedule: Schedule
    searched: Schedule | None
    static: Schedule | None
    bound_s: float

    @property
    def best(self) -> Schedule:
        """The shortest schedule found, even if it beats the static one by less than ``WORTH``."""
        candidates = [schedule for schedule in (self.searched, self.static) if schedule]
        return min(candidates, key=lambda schedule: schedule.makespan_s)

    @property
    def gap(self) -> float:
        """Relative distance of the makespan from the bound."""
        return self.schedule.makespan_s / self.bound_s - 1 if self.bound_s else 0.0


def plan(problem: Problem, seed: int = 0, effort: float = 1.0, menu: GroupMenu | None = None) -> CascadePlan:
    """Plan an iteration; a pure function, identical on every rank.

    Args:
        problem: planning problem.
        seed: seed of the search.
        effort: length of the search relative to the default, which hides behind an iteration. Time grows in
            proportion, and the gap to the bound shrinks on average.
        menu: groups that cascades may have; None: any GPUs.
    """
    bound_s, static = lower_bound(problem), best_static(problem, menu)
    # Of few cascades the exact search has time; a sweep of degrees gives it a first limit.
    few = problem.has_SM.sum() <= _CASCADES
    searched = _onto(problem, sweep(problem), menu) if few and not static else None
    known_s = min(
        (schedule.makespan_s for schedule in (searched, static and static[0]) if schedule), default=np.inf
    )
    if few:
        exact_search = exact(problem, known_s, int(_BRANCHES * effort), menu)
        searched = exact_search.schedule or searched
        known_s = searched.makespan_s if searched else known_s
        bound_s = exact_search.bound_s if exact_search.complete else bound_s
    # Not proven optimal: search further.
    if known_s > bound_s:
        searched = search(problem, bound_s, known_s, seed, effort, menu) or searched
        known_s = searched.makespan_s if searched else known_s
    # Far from the bound with few samples: begin again from the best of three baselines.
    if problem.samples <= FEW and known_s > bound_s * (1 + _FAR):
        baselines = flexsp(problem), sweep(problem), genetic(problem, seed)
        candidates = [
            schedule
            for schedule in (*(_onto(problem, schedule, menu) for schedule in baselines), searched)
            if schedule
        ]
        searched = min(candidates, key=lambda schedule: schedule.makespan_s)
        known_s = min(known_s, searched.makespan_s)
        searched = search_again(problem, bound_s, known_s, seed, effort, menu) or searched
    # A plan that uses one degree for all is kept where another hardly gains.
    if static and searched:
        chosen = choose_schedule(searched, static[0])
    elif searched:
        chosen = searched
    elif static:
        chosen = static[0]
    else:
        raise RunError(f"no schedule was found for {problem.samples} samples on {problem.gpus} GPUs")
    return CascadePlan(chosen, searched, static[0] if static else None, bound_s)


def _onto(problem: Problem, schedule: Schedule | None, menu: GroupMenu | None) -> Schedule | None:
    return schedule if schedule is None or menu is None else onto_menu(problem, schedule, menu)


def search(
    problem: Problem,
    bound_s: float,
    known_s: float,
    seed: int,
    effort: float = 1.0,
    menu: GroupMenu | None = None,
    slow_G: Floats | None = None,
) -> Schedule | None:
    """Search in cells for as long as an iteration can hide; None without a shorter schedule than a known one.

    Args:
        problem: planning problem.
        bound_s: lower bound of the makespan.
        known_s: makespan of the known schedule, or infinite.
        seed: seed of the search.
        effort: length of the search, as in `plan`.
        menu: groups that cascades may have; None: any GPUs.
        slow_G: times that each GPU takes of the others' time; needs a menu; None: all are alike.
    """
    size = smallest_cell(problem)
    crowd = problem.samples * min(2 * size / problem.gpus, 1.0)
    moves = _MOVES * problem.samples**_POWER * min(1.0, _CROWD / crowd)
    searches = next((count for max_samples, count in _SEARCHES if problem.samples <= max_samples), 1)
    groups = Groups(menu, slow_G)
    return in_cells(problem, size, bound_s, known_s, int(moves * effort), searches, seed, groups)


def search_again(
    problem: Problem,
    bound_s: float,
    known_s: float,
    seed: int,
    effort: float = 1.0,
    menu: GroupMenu | None = None,
    slow_G: Floats | None = None,
) -> Schedule | None:
    """Search longer, on all GPUs as one cell, for few samples; arguments and result as in `search`."""
    best = None
    for moves, searches, phases in _AGAIN:
        how = bound_s, known_s, int(moves * effort), searches, seed, Groups(menu, slow_G)
        best = in_cells(problem, problem.gpus, *how, stacked=False, phases=phases) or best
        known_s = min(known_s, best.makespan_s) if best else known_s
    return best


def choose_schedule(searched: Schedule, static: Schedule) -> Schedule:
    """Return the static schedule unless the other one is worth its handoffs and groups."""
    return static if static.makespan_s <= (1 + WORTH) * searched.makespan_s else searched
