"""The planner that training uses: never worse than the best static plan, and static where little is to be gained."""

from typing import NamedTuple

import numpy as np
from loader.errors import RunError
from train.cascade.bound import lower_bound
from train.cascade.cells import in_cells, smallest_cell
from train.cascade.problem import Problem
from train.cascade.schedule import Schedule
from train.cascade.static import best_static

WORTH = 0.02
"""A static plan is kept unless another is better by more than this share: it needs no handoffs and no groups."""
_SAMPLE_MOVES, _PAIR_MOVES = (
    260,
    80,
)  # for each sample, and for each pair of cells, which may exchange samples
_CROWD = 10  # with more samples in a pair of cells a move takes longer, and there are fewer: they are easier to balance
_FEW, _FEW_MOVES, _FEW_SEARCHES = (
    8,
    18_000,
    15,
)  # up to so few samples chance decides: many searches from other starts
_SEARCHES = 2  # up to twice as many; above them one


class Plan(NamedTuple):
    """A schedule, and what it is to be compared with.

    Attributes:
        schedule: the chosen one.
        searched: the best that the search found; None when it found none.
        static: the best static one; None when no degree suits all samples.
        bound_s: no schedule is shorter.
    """

    schedule: Schedule
    searched: Schedule | None
    static: Schedule | None
    bound_s: float

    @property
    def best(self) -> Schedule:
        """The shortest that is known, though it be hardly better than the static one."""
        found = [one for one in (self.searched, self.static) if one]
        return min(found, key=lambda one: one.makespan_s)

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound, as a share of it."""
        return self.schedule.makespan_s / self.bound_s - 1 if self.bound_s else 0.0


def plan(problem: Problem, seed: int = 0, effort: float = 1.0) -> Plan:
    """Plans an iteration; a pure function, the same on every rank.

    Args:
        problem: what is to be planned.
        seed: of the search.
        effort: how long it searches, relative to what an iteration can wait for; the time grows in proportion, and
            twice as long ends closer to the bound, on the whole.
    """
    bound_s, static = lower_bound(problem), best_static(problem)
    size = smallest_cell(problem)
    pairs = (problem.gpus / size) ** 2 / 2
    crowd = problem.samples * min(2 * size / problem.gpus, 1.0)
    moves = (_SAMPLE_MOVES * problem.samples + _PAIR_MOVES * pairs) * min(1.0, _CROWD / crowd)
    searches = _SEARCHES if problem.samples <= 2 * _FEW else 1
    if problem.samples <= _FEW:
        moves, searches = max(moves, _FEW_MOVES), _FEW_SEARCHES
    import os
    known_s = static[0].makespan_s if static else np.inf
    if problem.samples<=_FEW: moves,searches=int(os.environ.get("MOVES","18000")),int(os.environ.get("SEARCHES","15"))
    searched = in_cells(problem, size, bound_s, known_s, int(moves * effort), searches, seed)
    if static and searched:
        chosen = kept(searched, static[0])
    elif searched:
        chosen = searched
    elif static:
        chosen = static[0]
    else:
        raise RunError(f"no schedule was found for {problem.samples} samples on {problem.gpus} GPUs")
    return Plan(chosen, searched, static[0] if static else None, bound_s)


def kept(found: Schedule, static: Schedule) -> Schedule:
    """The static one, unless the other is worth its handoffs and groups."""
    return static if static.makespan_s <= (1 + WORTH) * found.makespan_s else found
