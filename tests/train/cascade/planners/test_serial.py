import numpy as np
import pytest

from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.assign_gpus import TimedCascade, assign_gpus
from reelweave.train.cascade.scheduling.serial import MEAN, MODULES, CascadeTable, Cells, SerialScratch, lay
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem

GPUS = 16


def free_cell(gpus: int) -> Cells:
    """One cell of these GPUs, any of which form a group."""
    return Cells.of(np.array([gpus]), np.array([1]), None)


def gpus_of(problem: Problem) -> Cells:
    return free_cell(problem.gpus)


def shaped(problem: Problem, draw: np.random.Generator):
    """Random degrees, what they take, and a random order in which no DiT comes before what it needs."""
    chance_SMK = np.where(problem.possible_SMK, draw.random(problem.possible_SMK.shape), -1)
    degree_SM = np.where(problem.has_SM, chance_SMK.argmax(axis=2), -1)
    sample_S1, module_M = np.arange(problem.samples)[:, None], np.arange(MODULES)
    width_SM = np.where(problem.has_SM, problem.degrees_K[degree_SM], 0)
    seconds_SM = np.where(problem.has_SM, problem.times_SMK[sample_S1, module_M, degree_SM], 0.0)
    order_N = draw.permutation(problem.samples * MODULES)
    dits = order_N % MODULES == Module.DIT
    return (
        degree_SM,
        CascadeTable(width_SM.ravel(), seconds_SM.ravel(), np.where(problem.has_SM, degree_SM, 0).ravel()),
        np.concatenate([order_N[~dits], order_N[dits]]).astype(np.uint32),
    )


def laid(problem: Problem, degree_SM, scratch: SerialScratch) -> Schedule:
    timed = (
        TimedCascade(
            float(scratch.start_N[MODULES * cascade.sample + cascade.module]),
            cascade,
            int(degree_SM[cascade]),
        )
        for cascade in problem.cascades()
    )
    return Schedule.of(assign_gpus(problem, timed, range(problem.gpus)), problem.gpus)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_gives_a_valid_schedule(seed):
    problem, draw = random_problem(seed), np.random.default_rng(seed)
    degree_SM, shape, order_N = shaped(problem, draw)
    scratch = SerialScratch.of(problem.samples, problem.gpus)
    cost_s = lay(order_N, len(order_N), shape, 0, gpus_of(problem), np.inf, scratch)
    schedule = laid(problem, degree_SM, scratch)
    assert violations(problem, schedule) == []
    assert schedule.makespan_s == pytest.approx(scratch.makespan[0])
    again_s = lay(order_N, len(order_N), shape, 0, gpus_of(problem), cost_s, scratch)
    assert again_s == cost_s  # the limit itself is allowed
    assert lay(order_N, len(order_N), shape, 0, gpus_of(problem), cost_s * (1 - 1e-9), scratch) == np.inf


@pytest.mark.parametrize("seed", range(10))
def test_the_cost_of_an_order_lies_between_its_work_on_all_gpus_and_its_makespan(seed):
    problem, draw = random_problem(seed), np.random.default_rng(seed)
    degree_SM, shape, order_N = shaped(problem, draw)
    scratch = SerialScratch.of(problem.samples, problem.gpus)
    cost_s = lay(order_N, len(order_N), shape, 0, gpus_of(problem), np.inf, scratch)
    mean_s = (cost_s - (1 - MEAN) * scratch.makespan[0]) / MEAN
    assert laid(problem, degree_SM, scratch).busy_s / problem.gpus <= mean_s + 1e-9
    assert mean_s <= scratch.makespan[0] + 1e-9


def test_the_mean_end_counts_gpus_that_wait_and_not_those_that_are_done():
    """Two GPUs, the second of which is done after one second of three."""
    shape = CascadeTable(
        np.array([1, 0, 1, 0, 0, 1]), np.array([1.0, 0.0, 2.0, 0.0, 0.0, 1.0]), np.zeros(6, np.int64)
    )
    cost_s = lay(np.array([0, 5, 2], np.uint32), 3, shape, 0, free_cell(2), np.inf, SerialScratch.of(2, 2))
    assert cost_s == pytest.approx((1 - MEAN) * 3 + MEAN * (3 + 1) / 2)


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_starts_gives_no_later_schedule(seed):
    problem, draw = random_problem(seed), np.random.default_rng(seed)
    _, shape, order_N = shaped(problem, draw)
    scratch = SerialScratch.of(problem.samples, problem.gpus)
    lay(order_N, len(order_N), shape, 0, gpus_of(problem), np.inf, scratch)
    makespan_s = scratch.makespan[0]
    starts_N = np.where(shape.width_N > 0, scratch.start_N, 0.0)
    by_start_N = np.lexsort((np.arange(len(starts_N)) % MODULES, starts_N))
    lay(by_start_N.astype(np.uint32), len(by_start_N), shape, 0, gpus_of(problem), np.inf, scratch)
    assert scratch.makespan[0] <= makespan_s + 1e-9


def test_a_dit_before_what_it_needs_is_no_order():
    seconds = np.array([[[np.inf], [1.0], [2.0]]])
    problem = Problem(1, np.array([1]), seconds, np.ones_like(seconds), 1.0)
    shape = CascadeTable(np.array([0, 1, 1]), np.array([0.0, 1.0, 2.0]), np.zeros(3, np.int64))
    scratch = SerialScratch.of(1, 1)
    assert lay(np.array([0, 1, 2], np.uint32), 3, shape, 0, free_cell(1), np.inf, scratch) == pytest.approx(
        3.0
    )
    assert lay(np.array([2, 1, 0], np.uint32), 3, shape, 0, free_cell(1), np.inf, scratch) == np.inf
    assert list(problem.cascades()) == [Cascade(0, Module.VAE), Cascade(0, Module.DIT)]
