import itertools

import numpy as np
import pytest

from reelweave.train.cascade.planners.by_name import PLANNERS
from reelweave.train.cascade.planners.exact import exact, tighten_bound
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.scheduling.serial import MODULES, CascadeTable, Cells, SerialScratch, lay
from reelweave.train.cascade.scheduling.static import best_static
from tests.thorough import beyond
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem
from tests.train.cascade.planners.tables import drawn_from_a_table

OTHERS = [name for name in PLANNERS if name not in ("ours", "cp-sat")]


def by_brute_force(problem: Problem) -> float:
    """Return the least makespan of all orders with all degrees: in some order each schedule comes out."""
    there = np.flatnonzero(problem.has_SM.ravel()).tolist()
    times_NK = problem.times_SMK.reshape(-1, len(problem.degrees_K))
    cells = Cells.of(np.array([problem.gpus]), problem.degrees_K, None)
    scratch, best_s = SerialScratch.of(problem.samples, problem.gpus), np.inf
    orders = [np.array(order, np.uint32) for order in itertools.permutations(there)]
    for chosen in itertools.product(*(np.flatnonzero(np.isfinite(times_NK[number])) for number in there)):
        shape = CascadeTable(
            np.zeros(len(times_NK), np.int64), np.zeros(len(times_NK)), np.zeros(len(times_NK), np.int64)
        )
        for number, k in zip(there, chosen, strict=True):
            shape.width_N[number], shape.seconds_N[number] = problem.degrees_K[k], times_NK[number, k]
        for order_N in orders:
            if lay(order_N, len(order_N), shape, 0, cells, np.inf, scratch) < np.inf:
                best_s = min(best_s, scratch.makespan[0])
    return best_s


@pytest.mark.parametrize("seed", beyond(2, range(12)))
def test_the_shortest_of_all_schedules_is_found(seed):
    draw = np.random.default_rng(seed)
    seconds_SMK = np.where(draw.random((3, MODULES, 2)) < 0.9, draw.uniform(0.5, 3, (3, MODULES, 2)), np.inf)
    seconds_SMK[:, Module.TEXT] = seconds_SMK[1:, Module.VAE] = np.inf
    seconds_SMK[:, Module.DIT, 0] = draw.uniform(1, 4, 3)
    if seed % 3 == 0:
        seconds_SMK[2] = seconds_SMK[1]  # like samples may not be renamed away
    problem = Problem(3, np.array([1, 2]), seconds_SMK, np.zeros_like(seconds_SMK), 1.0)
    found = exact(problem, 100.0, budget=100_000)
    assert found.complete
    assert violations(problem, found.schedule) == []
    assert found.schedule.makespan_s == pytest.approx(by_brute_force(problem))
    again = exact(problem, found.schedule.makespan_s, budget=100_000)
    assert (again.schedule, again.complete) == (None, True)


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_of_few_cascades_is_proven_best_and_never_worse_than_any_planner(seed):
    """Times that do not fall with the degree, as measured ones do not."""
    problem = drawn_from_a_table(seed)
    found = plan(problem, seed)
    assert violations(problem, found.best) == []
    assert found.best.makespan_s == pytest.approx(found.bound_s)
    assert found.bound_s >= lower_bound(problem) * (1 - 1e-9)
    for name in OTHERS:
        other = PLANNERS[name](problem, seed)
        assert other is None or other.makespan_s >= found.best.makespan_s * (1 - 1e-9), name


def test_a_search_that_ends_early_proves_nothing():
    problem = drawn_from_a_table(0)
    known_s = best_static(problem)[0].makespan_s
    some, all_ = (exact(problem, known_s, budget) for budget in (200, 1_000_000))
    assert not some.complete
    assert some.branches > 200
    assert all_.complete
    if some.schedule:
        assert violations(problem, some.schedule) == []
        assert some.schedule.makespan_s >= all_.schedule.makespan_s


def test_what_takes_no_time_is_left_to_others():
    """It would end where it starts, and nothing could start after it."""
    seconds_SMK = np.full((1, MODULES, 1), np.inf)
    seconds_SMK[0, Module.VAE], seconds_SMK[0, Module.DIT] = 0.0, 1.0
    problem = Problem(1, np.array([1]), seconds_SMK, np.zeros_like(seconds_SMK), 1.0)
    assert not exact(problem, 2.0, 1_000).complete
    assert plan(problem).best.makespan_s == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_proven_that_another_planner_disproves(seed):
    problem = random_problem(seed, most_samples=3)
    found = plan(problem, seed)
    for name in OTHERS:
        other = PLANNERS[name](problem, seed)
        assert other is None or other.makespan_s >= found.bound_s * (1 - 1e-9), name


@pytest.mark.parametrize("seed", range(3))
def test_a_bound_is_tightened_and_never_above_a_schedule(seed):
    problem = drawn_from_a_table(seed, samples=6, gpus=16)
    area_s, found = lower_bound(problem), plan(problem, seed)
    bound_s = tighten_bound(problem, area_s, found.best.makespan_s)
    assert area_s < bound_s <= found.best.makespan_s * (1 + 1e-9)
    for name in OTHERS:
        other = PLANNERS[name](problem, seed)
        assert other is None or other.makespan_s >= bound_s * (1 - 1e-9), name
