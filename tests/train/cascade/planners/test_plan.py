from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.planners.annealing import anneal
from reelweave.train.cascade.planners.cells import in_cells
from reelweave.train.cascade.planners.plan import WORTH, plan
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.scheduling.serial import lay
from reelweave.train.cascade.scheduling.static import best_static, static
from reelweave.train.cascade.simulation.cases import arachne, at_720p, drawn_at_720p
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem


def test_the_case_study_of_arachne():
    problem = arachne()
    four, (best, degree) = static(problem, 4), best_static(problem)
    assert four.makespan_s == pytest.approx(58.6, abs=0.01)
    assert min(run.end_s for run in four.runs if run.cascade.module is Module.DIT) == pytest.approx(
        6.0, abs=0.01
    )
    assert (best.makespan_s, degree) == (pytest.approx(35.0, abs=0.05), 8)
    assert lower_bound(problem) == pytest.approx(33.30, abs=0.01)
    found = plan(problem)
    assert found.schedule.makespan_s <= 33.6
    assert violations(problem, found.schedule) == []


@pytest.mark.parametrize("seed", range(15))
def test_a_plan_is_valid_never_below_the_bound_and_never_worse_than_static(seed):
    problem = random_problem(seed)
    found = plan(problem, seed)
    assert violations(problem, found.schedule) == []
    assert found.schedule.makespan_s >= found.bound_s * (1 - 1e-9)
    if found.static:
        assert violations(problem, found.static) == []
        assert found.schedule.makespan_s <= found.static.makespan_s


@pytest.mark.parametrize("seed", range(10))
def test_the_case_study_with_any_seed(seed):
    assert plan(arachne(), seed).schedule.makespan_s <= 33.6


@pytest.mark.parametrize(
    ("samples", "gpus", "most"),
    [(4, 16, 0.05), (16, 64, 0.05), (64, 256, 0.045), (16, 16, 0.012), (64, 64, 0.012)],
)
def test_searches_come_near_the_bound(samples, gpus, most):
    problem = drawn_at_720p(samples, gpus, seed=0)
    found = plan(problem)
    assert found.best.makespan_s <= (1 + most) * found.bound_s
    assert violations(problem, found.best) == []
    assert found.schedule.makespan_s <= (1 + WORTH) * found.best.makespan_s


def test_more_effort_ends_closer():
    problem = drawn_at_720p(16, 64, seed=3)
    little, much = (plan(problem, effort=effort).searched for effort in (0.02, 2.0))
    assert much.makespan_s < little.makespan_s


def test_a_static_plan_stays_where_little_is_to_be_gained():
    problem = drawn_at_720p(256, 64, seed=1)
    found = plan(problem)
    assert found.schedule is found.static
    assert found.gap < WORTH + 0.01


def test_the_same_seed_gives_the_same_plan():
    problem = drawn_at_720p(16, 64, seed=2)
    bound_s = lower_bound(problem)
    first, again, other = (in_cells(problem, 16, bound_s, np.inf, 500, 1, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert Schedule.from_rows(first.rows(), 64) == first


def test_plans_made_in_threads_at_a_time_are_those_made_one_by_one():
    problems = [drawn_at_720p(samples, 4 * samples, seed) for seed, samples in enumerate((4, 16, 8, 16))]
    with ThreadPoolExecutor(len(problems)) as threads:
        together = list(threads.map(plan, problems, range(len(problems))))
    assert together == [plan(problem, seed) for seed, problem in enumerate(problems)]


def test_a_search_lets_other_threads_run():
    """Training plans the next iteration while one runs."""
    assert all(function._dispatcher.targetoptions["nogil"] for function in (anneal, lay))


def test_nothing_is_searched_where_the_static_plan_is_proven_best():
    problem = at_720p(np.array([53]), 4)
    found = plan(problem)
    assert found.searched is None
    assert found.best == found.static


def test_what_fits_nowhere_is_named():
    times = np.ones((2, 3, 1))
    memory = np.array([[[1.0]] * 3, [[1.0], [1.0], [5.0]]]) * 2**30
    with pytest.raises(UsageError, match=r"DIT of sample 1 .* with 1 it needs 2\.50 times the memory"):
        Problem(4, np.array([1]), times, memory, 2.0 * 2**30)
