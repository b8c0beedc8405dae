"""All planners by name, for comparison: functions of a problem and a seed."""

from collections.abc import Callable

from reelweave.train.cascade.baselines.cp_sat import referee
from reelweave.train.cascade.baselines.flexsp import flexsp
from reelweave.train.cascade.baselines.genetic import genetic
from reelweave.train.cascade.baselines.sweep import sweep
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.static import best_static, static

Planner = Callable[[Problem, int], Schedule | None]
"""A planner returns None without a schedule, such as a static one whose degree some sample does not support."""


def _random(degree: int) -> Planner:
    return lambda problem, seed: static(problem, degree, largest_first=False)  # noqa: ARG005


def _lpt(problem: Problem, seed: int) -> Schedule | None:  # noqa: ARG001
    best = best_static(problem)
    return best[0] if best else None


def _ours(problem: Problem, seed: int) -> Schedule:
    return plan(problem, seed).best


def _referee(problem: Problem, seed: int) -> Schedule:
    return referee(problem, plan(problem, seed).best, seed=seed).schedule


PLANNERS: dict[str, Planner] = {
    "static-sp4": _random(4),
    "static-sp8": _random(8),
    "static-sp16": _random(16),
    "static-lpt": _lpt,
    "flexsp": lambda problem, seed: flexsp(problem),  # noqa: ARG005
    "genetic": genetic,
    "sweep": lambda problem, seed: sweep(problem),  # noqa: ARG005
    "ours": _ours,
    "cp-sat": _referee,
}
"""``static-spK`` assigns samples round-robin in the given order, as training on random buckets does. ``static-lpt`` is
the best static plan of all degrees. ``cp-sat`` starts from ours."""
SLOW = frozenset({"cp-sat"})
"""Planners that take tens of seconds, and are compared only where they are named."""
