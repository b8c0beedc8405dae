"""The fixed menu of groups, and plans that keep to it."""

import itertools

import numpy as np
import pytest

from reelweave.train.cascade.menu import GroupMenu, block_starts
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.scheduling.in_blocks import onto_menu
from reelweave.train.cascade.scheduling.static import static
from reelweave.train.cascade.simulation.cases import DEGREES, arachne, drawn_at_720p
from tests.thorough import but
from tests.train.cascade.check import violations
from tests.train.cascade.planners.problems import random_problem
from tests.train.cascade.planners.tables import drawn_from_a_table


def menu_of(problem):
    return GroupMenu.of(problem.gpus, problem.degrees_K)


def test_powers_of_two_are_aligned_and_nest():
    menu = GroupMenu.of(64, (1, 2, 4, 8, 16, 32, 64))
    groups = menu.groups()
    assert len(groups) == 32 + 16 + 8 + 4 + 2 + 1
    assert all(sum(gpu in group for group in groups) == 6 for gpu in range(64))
    for one, other in itertools.combinations(map(set, groups), 2):
        assert one.isdisjoint(other) or one <= other
    assert not menu.holds((2, 3, 4, 5))
    assert menu.holds((4, 5, 6, 7))


def test_other_degrees_lie_at_both_ends_of_what_encloses_them_and_at_their_multiples():
    assert block_starts(16, 6) == (0, 2, 6, 8, 10)
    assert block_starts(16, 12) == (0, 4)
    assert block_starts(12, 4) == (0, 4, 8)
    assert block_starts(6, 3) == (0, 1, 3)


@pytest.mark.parametrize("gpus", range(1, 40))
def test_every_range_that_a_search_cuts_holds_every_degree_that_it_is_as_large_as(gpus):
    """`in_cells` takes aligned powers of two from 8 on, the last of which may be cut off, or all GPUs."""
    menu = GroupMenu.of(gpus, range(1, 40))
    for size in (8, 16, 32, 64):
        for first in range(0, gpus, size):
            stop = min(first + size, gpus)
            assert all(menu.within(first, stop, degree) is not None for degree in range(1, stop - first + 1))


@pytest.mark.parametrize("seed", range(25))
def test_plans_keep_to_the_menu_and_are_never_worse_than_its_static_ones(seed):
    problem = random_problem(seed)
    menu = menu_of(problem)
    found = plan(problem, seed, menu=menu)
    for one in (found.schedule, found.searched, found.static):
        if one:
            assert violations(problem, one) == []
            assert menu.strangers(one) == []
            assert found.schedule.makespan_s <= (1 + 0.02) * one.makespan_s
    assert found.best.makespan_s >= found.bound_s * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_static_plans_have_groups_of_the_menu(seed):
    problem = random_problem(seed)
    for degree in problem.degrees_K.tolist():
        made = static(problem, degree, menu=menu_of(problem))
        if made:
            assert violations(problem, made) == []
            assert menu_of(problem).strangers(made) == []


@pytest.mark.parametrize(
    ("samples", "gpus"), but([(4, 16), (16, 64)], [(4, 16), (16, 64), (64, 256), (16, 16), (64, 64)])
)
def test_the_menu_costs_at_most_a_percent_of_the_makespan(samples, gpus):
    """On average of four draws, against free groups searched as long."""
    shares = []
    for seed in range(4):
        problem = drawn_at_720p(samples, gpus, seed)
        ours, free = plan(problem, seed, menu=GroupMenu.of(gpus, DEGREES)), plan(problem, seed)
        shares.append(ours.best.makespan_s / free.best.makespan_s)
    assert np.mean(shares) < 1.01


def test_the_case_study_needs_no_other_groups():
    problem = arachne()
    assert plan(problem, menu=menu_of(problem)).best.makespan_s == pytest.approx(
        plan(problem).best.makespan_s
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_that_is_proven_holds_for_free_groups(seed):
    problem = drawn_from_a_table(seed)
    ours, free = plan(problem, seed, menu=menu_of(problem)), plan(problem, seed)
    assert ours.bound_s == pytest.approx(free.bound_s)
    assert ours.best.makespan_s >= free.best.makespan_s * (1 - 1e-9)


def run(sample, start_s, end_s, *gpus):
    return Run(Cascade(sample, Module.DIT), start_s, end_s, gpus)


def test_free_groups_become_blocks_with_all_starts_where_there_are_blocks():
    seconds = np.full((3, 3, 3), np.inf)
    seconds[:, Module.DIT] = 1.0
    problem = Problem(4, np.array([1, 2, 4]), seconds, np.zeros_like(seconds), 1.0)
    free = Schedule.of([run(0, 0, 1, 0, 2), run(1, 0, 1, 1, 3), run(2, 1, 2, 0, 1, 2, 3)], 4)
    found = onto_menu(problem, free, menu_of(problem))
    assert [one.gpus for one in found.runs] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert [one.start_s for one in found.runs] == [0, 0, 1]


def test_where_there_are_none_cascades_wait_for_a_block():
    """Four cascades of a GPU, two of which end early but not beside each other whatever the blocks."""
    seconds = np.full((5, 3, 2), np.inf)
    seconds[:, Module.DIT] = np.array([3.0, 2.0, 2.5, 1.0, 1.0])[:, None]
    problem = Problem(3, np.array([1, 2]), seconds, np.zeros_like(seconds), 1.0)
    free = Schedule.of([run(0, 0, 3, 0), run(1, 0, 2, 1), run(2, 0, 2.5, 2), run(3, 2.5, 3.5, 1, 2)], 3)
    found = onto_menu(problem, free, menu_of(problem))
    assert menu_of(problem).strangers(found) == []
    assert found.makespan_s == pytest.approx(3.5)
