import itertools

import numpy as np
import pytest

from reelweave.train.cascade.planners.initial_states import degrees
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.planners.pruning import narrow_degrees, times_to_try
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.simulation.cases import arachne
from tests.train.cascade.planners.problems import random_problem


@pytest.mark.parametrize("seed", range(20))
def test_degrees_of_a_schedule_that_ends_in_time_stay(seed):
    problem = random_problem(seed, most_samples=6)
    best = plan(problem, seed).best
    times_SMK = narrow_degrees(problem, best.makespan_s * (1 + 1e-9))
    for run in best.runs:
        k = np.flatnonzero(problem.degrees_K == len(run.gpus))[0]
        assert times_SMK[*run.cascade, k] == problem.times_SMK[*run.cascade, k]


def test_what_is_too_late_or_too_much_work_goes():
    """Two samples on four GPUs within 3 s: 12 GPU-seconds for 9 and 1 at least."""
    seconds_SMK = np.full((2, 3, 3), np.inf)
    seconds_SMK[0, Module.DIT] = 9.0, 4.5, 2.5
    seconds_SMK[1, Module.DIT] = 1.0, 0.95, 0.9
    seconds_SMK[0, Module.TEXT, 0] = 0.2
    problem = Problem(4, np.array([1, 2, 4]), seconds_SMK, np.ones_like(seconds_SMK), 1.0)
    times_SMK = narrow_degrees(problem, 3.0)
    assert np.isfinite(times_SMK[0, Module.DIT]).tolist() == [False, False, True]
    assert np.isfinite(times_SMK[1, Module.DIT]).tolist() == [True, False, False]
    assert narrow_degrees(problem, 2.6) is None


def test_no_limit_takes_nothing():
    problem = arachne()
    assert (narrow_degrees(problem, np.inf) == problem.times_SMK).all()


@pytest.mark.parametrize(("seed", "parts"), list(itertools.product(range(10), (1, 4))))
def test_begun_degrees_are_possible_and_stay_so_in_a_search(seed, parts):
    problem = random_problem(seed)
    size_S, no_SMK = np.full(problem.samples, problem.gpus), np.full_like(problem.times_SMK, np.inf)
    for times_SMK in (problem.times_SMK, no_SMK):
        degree_SM = degrees(problem, times_SMK, size_S, parts, 1.0)
        assert ((degree_SM >= 0) == problem.has_SM).all()
        own_SMK = times_to_try(problem, no_SMK, degree_SM, np.zeros(len(problem.degrees_K), bool))
        assert (np.isfinite(own_SMK).sum(axis=2) == problem.has_SM).all()
