"""Plans around stragglers.

A cascade takes as long as its slowest GPU. The search therefore places cascades with the time that each group
of the menu takes. Groups with a straggler get shorter samples, or none. The shortest result by that time is
kept, the plan that takes all GPUs to be alike among them.
"""

from collections.abc import Mapping

import numpy as np

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.planners.plan import FEW, CascadePlan, search, search_again
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.simulation.simulate import Noise, execute

_TARGETS = (1.0, 1.06, 1.12)
"""Makespans to search for, relative to that of work in proportion to speeds: a group has the speed of its slowest."""


def slow_down(schedule: Schedule, slow: Mapping[int, float]) -> Schedule:
    """Return a schedule as it executes if only these GPUs are slow."""
    still = Noise(sigma=0, slow=dict(slow))
    return execute(schedule, still.factors(schedule, np.random.default_rng(0)))


def around(
    problem: Problem, planned: CascadePlan, slow: Mapping[int, float], menu: GroupMenu, seed: int
) -> Schedule:
    """Return the shortest plan found with some GPUs slow; pure, identical on every rank.

    Args:
        problem: problem of all GPUs, as if identical.
        planned: plan of the problem, with groups of the menu.
        slow: slowdown of each straggler; see `correction`.
        menu: groups that cascades may have.
        seed: seed of the search.

    Returns:
        A schedule with times of identical GPUs. Its `slow_down` makespan is at most that of the planned one.
    """
    slow_G = np.array([max(slow.get(gpu, 1.0), 1.0) for gpu in range(problem.gpus)])
    candidates = [schedule for schedule in (planned.schedule, planned.searched, planned.static) if schedule]
    known_s = min(slow_down(schedule, slow).makespan_s for schedule in candidates)
    least_s = planned.bound_s * problem.gpus / float((1 / slow_G).sum())
    for searching in (search, search_again) if problem.samples <= FEW else (search,):
        for target in _TARGETS:
            if searched := searching(problem, least_s * target, known_s, seed, 1.0, menu, slow_G):
                candidates.append(execute(searched))
                known_s = min(known_s, slow_down(searched, slow).makespan_s)
    return min(candidates, key=lambda schedule: slow_down(schedule, slow).makespan_s)
