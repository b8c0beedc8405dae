import numpy as np
import pytest

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.online.around import around, slow_down
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.rank_order import RankOrder
from reelweave.train.cascade.simulation.cases import arachne, drawn_at_720p
from reelweave.train.cascade.simulation.simulate import Noise, execute
from tests.thorough import beyond
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem


def with_and_without(problem, slow, seed=0, order=None):
    """The plan as if all ranks were alike, and around slow ones, with groups of an order of ranks."""
    menu, order = GroupMenu.of(problem.gpus, problem.degrees_K), order or RankOrder.of(problem.gpus)
    planned = plan(problem, seed, effort=0.3, menu=menu)
    found = around(problem, planned, {order.places[rank]: one for rank, one in slow.items()}, menu, seed)
    assert menu.strangers(found) == []
    found = order.on_ranks(found)
    assert violations(problem, found) == []
    assert {run.gpus for run in found.runs if len(run.gpus) > 1} <= set(order.groups(menu))
    return order.on_ranks(planned.schedule), found


@pytest.mark.parametrize("seed", beyond(5, range(12)))
def test_never_worse_than_doing_nothing_and_valid(seed):
    problem, draw = random_problem(seed, most_samples=8, most_gpus=12), np.random.default_rng(seed)
    slow_G = draw.choice(problem.gpus, min(2, problem.gpus), replace=False)
    slow = {int(gpu): float(draw.uniform(1, 2.5)) for gpu in slow_G}
    before, found = with_and_without(problem, slow, seed)
    executed_s = execute(found, Noise(sigma=0, slow=slow).factors(found, draw)).makespan_s
    assert executed_s == pytest.approx(slow_down(found, slow).makespan_s)
    assert executed_s <= slow_down(before, slow).makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(("factor", "most"), beyond(1, [(1.5, 1.15), (1.1, 1.1), (3.0, 1.15)]))
@pytest.mark.parametrize("rank", beyond(1, [5, 10]))
def test_a_slow_gpu_costs_less_than_it_is_slow(factor, most, rank):
    """Of 16 GPUs one; where it is last of the menu, a group of 6 stays without it on its node."""
    slow = {rank: factor}
    before, found = with_and_without(arachne(), slow, order=RankOrder.of(16, slow, per_node=8))
    assert slow_down(found, slow).makespan_s < most * before.makespan_s
    assert slow_down(before, slow).makespan_s > (1 + 0.9 * (factor - 1)) * before.makespan_s


def test_slow_gpus_of_several_nodes_lie_in_the_same_blocks():
    """Of 64 GPUs three on three nodes: half of the wide groups are without any."""
    problem, slow = drawn_at_720p(16, 64, seed=2), {1: 2.0, 20: 2.0, 41: 2.0}
    before, scattered = with_and_without(problem, slow)
    _, found = with_and_without(problem, slow, order=RankOrder.of(64, slow, per_node=8))
    assert slow_down(found, slow).makespan_s < 1.15 * before.makespan_s
    assert slow_down(found, slow).makespan_s < slow_down(scattered, slow).makespan_s


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_of_many_gpus_a_slow_one_costs_little(factor):
    slow = {17: factor}
    before, found = with_and_without(drawn_at_720p(16, 64, seed=2), slow)
    assert slow_down(found, slow).makespan_s < 1.1 * before.makespan_s
    assert slow_down(before, slow).makespan_s > 1.5 * before.makespan_s
