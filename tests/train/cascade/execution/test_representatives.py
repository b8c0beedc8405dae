"""When some ranks' gradients hold every sample once, and what happens where the paper's choice is wrong."""

import itertools
import random

import torch

from reelweave.train.cascade.execution.representatives import Representatives, exact_cover
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule


def dits(*groups):
    runs = [
        Run(Cascade(sample, Module.DIT), float(sample), sample + 1.0, group)
        for sample, group in enumerate(groups)
    ]
    return Schedule.of(runs, 1 + max(max(group) for group in groups))


def test_the_counterexample_to_a_set_cover_is_refused():
    """A on ranks 0 and 1, B on 0, C on 1: both ranks are the only cover, and count A twice."""
    plan = dits((0, 1), (0,), (1,))
    assert Representatives.of(plan) is None
    A, B, C = torch.randn(3, 4, dtype=torch.float64)
    of_cover = (A + B) + (A + C)
    torch.testing.assert_close(of_cover, 2 * A + B + C)
    assert not torch.allclose(of_cover, A + B + C)


def test_groups_that_lie_apart_have_one_representative_each():
    assert Representatives.of(dits((0, 1), (2, 3), (0, 1))).ranks == (0, 2)


def test_one_rank_that_has_all_samples_stands_for_all():
    assert Representatives.of(dits((0, 1, 2), (1,), (1, 2))).ranks == (1,)


def test_a_cover_is_found_exactly_where_trying_all_sets_of_ranks_finds_one():
    draw = random.Random(0)
    found = 0
    for _ in range(300):
        samples, ranks = draw.randint(1, 5), draw.randint(1, 6)
        has = [{sample for sample in range(samples) if draw.random() < 0.4} for _ in range(ranks)]
        everything = set().union(*has)
        exists = any(
            sum(len(has[rank]) for rank in chosen) == len(everything)
            and set().union(*(has[rank] for rank in chosen)) == everything
            for size in range(ranks + 1)
            for chosen in itertools.combinations(range(ranks), size)
        )
        cover = exact_cover(has)
        assert (cover is not None) == exists
        if cover:
            found += 1
            assert sorted(sample for rank in cover for sample in has[rank]) == sorted(everything)
    assert 50 < found < 250
