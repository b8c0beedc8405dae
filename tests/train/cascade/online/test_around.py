import numpy as np
import pytest

from tests.train.cascade.planners.problems import random_problem
from train.cascade.menu import GroupMenu
from train.cascade.online.around import around, slowed
from train.cascade.paper.cases import arachne, drawn_at_720p
from train.cascade.paper.simulate import Noise, execute
from train.cascade.planners.plan import plan
from train.cascade.scheduling.check import violations


def with_and_without(problem, slow, seed=0):
    menu = GroupMenu.of(problem.gpus, problem.degrees_K)
    planned = plan(problem, seed, effort=0.3, menu=menu)
    found = around(problem, planned, slow, menu, seed)
    assert violations(problem, found) == []
    assert menu.strangers(found) == []
    return planned.schedule, found


@pytest.mark.parametrize("seed", range(12))
def test_never_worse_than_doing_nothing_and_valid(seed):
    problem, draw = random_problem(seed, most_samples=8, most_gpus=12), np.random.default_rng(seed)
    slow_G = draw.choice(problem.gpus, min(2, problem.gpus), replace=False)
    slow = {int(gpu): float(draw.uniform(1, 2.5)) for gpu in slow_G}
    before, found = with_and_without(problem, slow, seed)
    executed_s = execute(found, Noise(sigma=0, slow=slow).factors(found, draw)).makespan_s
    assert executed_s == pytest.approx(slowed(found, slow).makespan_s)
    assert executed_s <= slowed(before, slow).makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(("factor", "most"), [(1.1, 1.1), (1.5, 1.2), (3.0, 1.55)])
def test_a_slow_gpu_costs_less_than_it_is_slow(factor, most):
    """Of 16 GPUs one; no group of more than 8 is without it, so that the longest video takes 1.5 times as long."""
    slow = {5: factor}
    before, found = with_and_without(arachne(), slow)
    assert slowed(found, slow).makespan_s < most * before.makespan_s
    assert slowed(before, slow).makespan_s > (1 + 0.9 * (factor - 1)) * before.makespan_s


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_of_many_gpus_a_slow_one_costs_little(factor):
    slow = {17: factor}
    before, found = with_and_without(drawn_at_720p(16, 64, seed=2), slow)
    assert slowed(found, slow).makespan_s < 1.1 * before.makespan_s
    assert slowed(before, slow).makespan_s > 1.5 * before.makespan_s
