import numpy as np
import pytest

from reelweave.train.cascade.baselines.cp_sat import referee
from reelweave.train.cascade.baselines.flexsp import flexsp
from reelweave.train.cascade.baselines.genetic import GeneticConfig, genetic
from reelweave.train.cascade.planners.by_name import PLANNERS
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.scheduling.static import best_static
from reelweave.train.cascade.simulation.cases import arachne, at_720p, drawn_at_720p
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem

FAST = [name for name in PLANNERS if name != "cp-sat"]


@pytest.mark.parametrize("name", FAST)
def test_plans_are_valid_and_never_below_the_bound(name):
    for seed in range(8):
        problem = random_problem(seed, most_samples=8)
        schedule = PLANNERS[name](problem, seed)
        if schedule:
            assert violations(problem, schedule) == []
            assert schedule.makespan_s >= lower_bound(problem) * (1 - 1e-9)


def test_flexsp_on_the_case_study_gives_each_sample_a_group():
    schedule = flexsp(arachne())
    assert schedule.makespan_s == pytest.approx(53.3, abs=0.05)
    widths = sorted(len(run.gpus) for run in schedule.runs if run.cascade.module is Module.DIT)
    assert widths[-2:] == [4, 8]
    assert max(run.start_s for run in schedule.runs if run.cascade.module is Module.TEXT) == 0  # one round


def test_flexsp_takes_as_few_rounds_as_the_gpus_allow():
    """Nine samples that need a GPU each, on four: three rounds, of alike samples."""
    seconds = np.full((9, 3, 1), np.inf)
    seconds[:, Module.DIT, 0] = np.arange(1, 10)
    problem = Problem(4, np.array([1]), seconds, np.ones_like(seconds), 1.0)
    schedule = flexsp(problem)
    assert violations(problem, schedule) == []
    assert schedule.makespan_s == 9 + 6 + 3


def test_the_genetic_algorithm_nears_the_optimum_of_few_samples_and_gets_better_with_generations():
    assert genetic(arachne()).makespan_s <= 34.6
    problem = drawn_at_720p(16, 64, seed=0)
    begun, evolved = (genetic(problem, config=GeneticConfig(generations=some)) for some in (1, 40))
    assert evolved.makespan_s < begun.makespan_s


def test_the_sweep_beats_random_static_plans():
    problem = drawn_at_720p(64, 256, seed=0)
    assert PLANNERS["sweep"](problem, 0).makespan_s < 1.1 * lower_bound(problem)
    assert PLANNERS["static-sp8"](problem, 0).makespan_s > 1.3 * lower_bound(problem)


def test_the_referee_proves_what_is_optimal():
    problem = at_720p(np.array([13, 113]), 8)
    verdict = referee(problem, best_static(problem)[0])
    assert verdict.optimal
    assert violations(problem, verdict.schedule) == []
    assert lower_bound(problem) <= verdict.bound_s <= verdict.schedule.makespan_s
    assert verdict.schedule.makespan_s < best_static(problem)[0].makespan_s
    assert verdict.schedule.makespan_s <= plan(problem).best.makespan_s * (
        1 + 1e-5
    )  # durations are rounded up


# Others of these numbers take CP-SAT minutes; the benchmark has more.
@pytest.mark.parametrize("seed", [1, 4, 6, 7, 9])
def test_ours_is_within_a_percent_of_the_optimum_of_small_problems(seed):
    problem = random_problem(seed, most_samples=5, most_gpus=12)
    ours = plan(problem, seed).best
    verdict = referee(problem, ours)
    assert verdict.optimal
    assert violations(problem, verdict.schedule) == []
    assert lower_bound(problem) * (1 - 1e-9) <= verdict.schedule.makespan_s <= ours.makespan_s
    assert verdict.bound_s <= verdict.schedule.makespan_s * (1 + 1e-9)
    assert ours.makespan_s <= 1.01 * verdict.schedule.makespan_s
