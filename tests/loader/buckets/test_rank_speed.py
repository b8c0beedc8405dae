"""Ranks that are slow at everything, told from shapes that take long."""

import numpy as np
import pytest

from reelweave.loader.buckets.cost_fit import Timings
from reelweave.loader.buckets.rank_speed import odd_ranks

SHAPES = np.array([(8, 500), (4, 1000), (2, 4000), (1, 20_000), (1, 60_000)])
SHAPE_S = np.array([0.1, 0.15, 0.7, 3.0, 20.0])  # no cost model has these


def timings(shape: np.ndarray, rank: np.ndarray, factor: np.ndarray, noise: float = 0.03) -> Timings:
    spread = np.exp(noise * np.random.default_rng(0).normal(size=len(shape)))
    batch, length = SHAPES[shape].T
    return Timings(batch, length, SHAPE_S[shape] * factor[rank] * spread, rank)


def drawn(ranks: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Shapes and ranks of many microbatches."""
    return np.random.default_rng(1).integers(0, len(SHAPES), ranks * each), np.arange(ranks * each) % ranks


def test_a_slow_rank_is_told_by_shapes_that_others_ran() -> None:
    factor = np.array([1.0, 1.0, 1.0, 1.3])
    assert odd_ranks(timings(*drawn(4, 50), factor), 1.15) == pytest.approx({3: 1.3}, rel=0.03)


def test_of_two_ranks_the_fast_one_is_the_measure() -> None:
    found = odd_ranks(timings(*drawn(2, 50), np.array([1.4, 1.0])), 1.15)
    assert found == pytest.approx({0: 1.4}, rel=0.03)


def test_a_rank_that_gets_the_long_shapes_is_not_slow() -> None:
    shape, rank = drawn(4, 200)
    mostly_long = (rank == 2) & (shape < 3)
    shape = np.where(mostly_long & (np.arange(len(shape)) % 10 > 0), 4, shape)
    assert odd_ranks(timings(shape, rank, np.ones(4)), 1.15) == {}
    slow = np.array([1.0, 1.0, 1.25, 1.0])
    assert odd_ranks(timings(shape, rank, slow), 1.15) == pytest.approx({2: 1.25}, rel=0.03)


def test_nothing_is_said_of_a_rank_that_shares_no_shape() -> None:
    shape, rank = drawn(3, 100)
    shape = np.where(rank == 2, 4, shape % 4)
    assert odd_ranks(timings(shape, rank, np.array([1.0, 1.0, 2.0])), 1.15) == {}
    assert odd_ranks(timings(*drawn(1, 100), np.array([2.0])), 1.15) == {}


def test_small_few_and_noisy_differences_are_none() -> None:
    slow = np.array([1.0, 1.0, 1.0, 1.3])
    assert odd_ranks(timings(*drawn(4, 100), np.array([1.0, 1.0, 1.0, 1.1])), 1.15) == {}
    assert odd_ranks(timings(*drawn(4, 15), slow), 1.15) == {}
    assert odd_ranks(timings(*drawn(4, 25), slow, noise=0.6), 1.15) == {}


def test_odd_times_make_no_odd_rank() -> None:
    measured = timings(*drawn(8, 60), np.ones(8))
    hit = np.random.default_rng(2).random(len(measured.step_s)) < 0.15
    measured.step_s[hit] *= 5
    assert odd_ranks(measured, 1.15) == {}


def test_without_ranks_or_times_there_is_nothing_to_tell() -> None:
    measured = timings(*drawn(4, 50), np.array([1.0, 1.0, 1.0, 1.3]))
    assert odd_ranks(Timings(measured.batch, measured.length, measured.step_s), 1.15) == {}
    assert odd_ranks(measured.where(np.zeros(200, bool)), 1.15) == {}
