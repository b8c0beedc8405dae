"""Planner of training: never worse than the best static plan, and static if little is gained."""

from typing import NamedTuple

import numpy as np

from loader.errors import RunError
from train.cascade.baselines.flexsp import flexsp
from train.cascade.baselines.genetic import genetic
from train.cascade.baselines.sweep import sweep
from train.cascade.planners.cells import COLD, HOT, in_cells, smallest_cell
from train.cascade.planners.exact import exact
from train.cascade.problem import Problem
from train.cascade.schedule import Schedule
from train.cascade.scheduling.bound import lower_bound
from train.cascade.scheduling.static import best_static

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
_FEW, _FAR = 8, 0.02  # samples, and gap to the bound above which all other planners run, too
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
        found = [one for one in (self.searched, self.static) if one]
        return min(found, key=lambda one: one.makespan_s)

    @property
    def gap(self) -> float:
        """Relative distance of the makespan from the bound."""
        return self.schedule.makespan_s / self.bound_s - 1 if self.bound_s else 0.0


def plan(problem: Problem, seed: int = 0, effort: float = 1.0) -> CascadePlan:
    """Plan an iteration; a pure function, identical on every rank.

    Args:
        problem: planning problem.
        seed: seed of the search.
        effort: length of the search relative to the default, which hides behind an iteration; time grows in
            proportion, and the gap to the bound shrinks on average.
    """
    bound_s, static = lower_bound(problem), best_static(problem)
    few = problem.has_SM.sum() <= _CASCADES
    searched = sweep(problem) if few and not static else None
    known_s = min((one.makespan_s for one in (searched, static and static[0]) if one), default=np.inf)
    if few:
        found = exact(problem, known_s, int(_BRANCHES * effort))
        searched = found.schedule or searched
        known_s = searched.makespan_s if searched else known_s
        bound_s = known_s if found.complete else bound_s
    if known_s > bound_s:
        searched = _in_cells(problem, bound_s, known_s, seed, effort) or searched
        known_s = searched.makespan_s if searched else known_s
    if problem.samples <= _FEW and known_s > bound_s * (1 + _FAR):
        others = [one for one in (flexsp(problem), sweep(problem), genetic(problem, seed), searched) if one]
        searched = min(others, key=lambda one: one.makespan_s)
        for moves, searches, phases in _AGAIN:
            known_s = min(known_s, searched.makespan_s)
            how = bound_s, known_s, int(moves * effort), searches, seed
            searched = in_cells(problem, problem.gpus, *how, stacked=False, phases=phases) or searched
    if static and searched:
        chosen = kept(searched, static[0])
    elif searched:
        chosen = searched
    elif static:
        chosen = static[0]
    else:
        raise RunError(f"no schedule was found for {problem.samples} samples on {problem.gpus} GPUs")
    return CascadePlan(chosen, searched, static[0] if static else None, bound_s)


def _in_cells(problem: Problem, bound_s: float, known_s: float, seed: int, effort: float) -> Schedule | None:
    """Search for as long as an iteration can hide."""
    size = smallest_cell(problem)
    crowd = problem.samples * min(2 * size / problem.gpus, 1.0)
    moves = _MOVES * problem.samples**_POWER * min(1.0, _CROWD / crowd)
    searches = next((number for most, number in _SEARCHES if problem.samples <= most), 1)
    return in_cells(problem, size, bound_s, known_s, int(moves * effort), searches, seed)


def kept(found: Schedule, static: Schedule) -> Schedule:
    """Return the static schedule unless the other one is worth its handoffs and groups."""
    return static if static.makespan_s <= (1 + WORTH) * found.makespan_s else found
