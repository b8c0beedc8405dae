"""Microbatches placed on ranks: all of them, evenly, and the same everywhere."""

import itertools
import tracemalloc

import numpy as np
import pytest

from reelweave.loader.plan import balance
from reelweave.loader.plan.balance import balance_costs, least_load


def loads(costs: np.ndarray, ranks: int) -> np.ndarray:
    return np.bincount(balance_costs(costs, ranks), weights=costs, minlength=ranks)


def heavy_tailed(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, 1, count)


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (5, 1), (2, 2), (7, 3), (12, 4), (64, 16), (1024, 128)])
def test_every_microbatch_has_a_rank_and_every_rank_work(count: int, ranks: int) -> None:
    for seed in range(5):
        placed = balance_costs(heavy_tailed(count, seed), ranks)
        assert len(placed) == count
        assert set(placed.tolist()) == set(range(ranks))


@pytest.mark.parametrize(("count", "ranks"), [(6, 2), (8, 2), (9, 3), (8, 4)])
def test_small_steps_are_within_two_percent_of_the_best_there_is(count: int, ranks: int) -> None:
    choices = np.indices((ranks,) * count).reshape(count, -1)
    excess = []
    for seed in range(12):
        costs = heavy_tailed(count, seed)
        best = np.max([costs @ (choices == rank) for rank in range(ranks)], axis=0).min()
        excess.append(loads(costs, ranks).max() / best - 1)
    assert np.mean(excess) < 0.02
    assert max(excess) < 0.10


@pytest.mark.parametrize("ranks", [16, 128])
def test_with_eight_microbatches_a_rank_hardly_anybody_waits(ranks: int) -> None:
    costs = np.random.default_rng(1).uniform(0.2, 4.0, 8 * ranks)
    found = loads(costs, ranks)
    assert found.max() <= found.mean() * 1.001


def test_what_is_larger_than_a_share_stays_alone() -> None:
    costs = np.array([10.0, 1, 1, 1, 1, 1, 1])
    placed = balance_costs(costs, 3)
    assert (placed[1:] != placed[0]).all()
    assert sorted(loads(costs, 3)) == [3, 3, 10]


def test_equal_costs_give_equal_numbers() -> None:
    assert loads(np.ones(24), 8).tolist() == [3] * 8


def test_scale_does_not_matter() -> None:
    costs = heavy_tailed(256, 3)
    assert np.array_equal(balance_costs(costs, 32), balance_costs(costs * 2.0**40, 32))
    assert np.array_equal(balance_costs(costs, 32), balance_costs(costs.copy(), 32))


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (3, 3), (4, 3), (8, 2), (7, 3), (5, 4)])
def test_no_placement_is_below_the_least_load(count: int, ranks: int) -> None:
    for seed in range(4):
        costs = np.random.default_rng(seed).pareto(0.8, count) + 0.1
        best = min(
            np.bincount(choice, weights=costs, minlength=ranks).max()
            for choice in itertools.product(range(ranks), repeat=count)
        )
        assert max(costs.sum() / ranks, costs.max()) <= least_load(costs, ranks) <= best * (1 + 1e-9)


def test_one_more_equal_microbatch_than_ranks_makes_one_rank_run_two() -> None:
    assert least_load(np.ones(9), 8) == 2


def test_ranks_of_many_microbatches_are_balanced_in_bounded_memory() -> None:
    costs = np.concatenate([np.full(7, 50.0), np.random.default_rng(0).uniform(0.001, 0.1, 20_000)])
    tracemalloc.start()
    placed = balance_costs(costs, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.bincount(placed, costs).max() <= least_load(costs, 8) * 1.001
    assert peak < 60 * 2**20


@pytest.mark.parametrize("count", [2, 5, 40])
@pytest.mark.parametrize("ranks", [1, 9, 64])
def test_compiled_loops_place_as_the_others_do(
    ranks: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.default_rng(count)
    for costs in (
        heavy_tailed(ranks * count, 1),
        draws.pareto(1.2, ranks * count) + 0.01,
        draws.integers(1, 5, ranks * count).astype(float),  # with many equal costs
    ):
        monkeypatch.setattr(balance, "_COMPILED_RANKS", 1)
        compiled = balance_costs(costs, ranks)
        monkeypatch.setattr(balance, "_COMPILED_RANKS", ranks + 1)
        assert np.array_equal(compiled, balance_costs(costs, ranks))
