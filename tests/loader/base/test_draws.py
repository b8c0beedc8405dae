"""Random orders: every one equally likely, by group where there are groups, whatever bits the keys have left."""

import itertools
from collections import Counter

import numpy as np
import pytest

from reelweave.loader.base.arrays import IntegerArray
from reelweave.loader.base.philox import shuffle_indices

FAR = 2**40  # as the largest group leaves few random bits


def excess(counts: np.ndarray, expected: float) -> float:
    """Chi-square of equally likely outcomes, in standard deviations above its mean."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_every_order_is_equally_likely() -> None:
    found = Counter(tuple(shuffle_indices(seed, 0, 0, 5).tolist()) for seed in range(12_000))
    counts = np.array([found[order] for order in itertools.permutations(range(5))])
    assert counts.sum() == 12_000
    assert abs(excess(counts, 100)) < 3


def test_within_a_group_every_order_is_equally_likely() -> None:
    group = np.array([1, 0, 1, 0, 1])
    found = Counter(tuple(shuffle_indices(seed, 0, 0, 5, group).tolist()) for seed in range(12_000))
    orders = itertools.product(itertools.permutations([1, 3]), itertools.permutations([0, 2, 4]))
    counts = np.array([found[first + second] for first, second in orders])
    assert counts.sum() == 12_000
    assert abs(excess(counts, 1000)) < 3


@pytest.mark.parametrize("largest", [0, 1, 20, FAR])
@pytest.mark.parametrize("count", [0, 1, 2, 1000, 70_000])
def test_groups_follow_each_other_and_nothing_is_lost(count: int, largest: int) -> None:
    group = np.random.default_rng(0).choice([0, largest // 2, largest], count)
    order = shuffle_indices(1, 2, 3, count, group)
    assert (np.diff(group[order]) >= 0).all()
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("group", [None, np.zeros(70_000, np.int16), np.repeat([0, FAR], [69_999, 1])])
def test_neighbours_are_no_neighbours_afterwards(group: IntegerArray | None) -> None:
    order = shuffle_indices(1, 2, 3, 70_000, group)[:-1].astype(np.int64)
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.01
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.01


def test_ties_of_few_random_bits_favour_no_number() -> None:
    count = 2**20
    # 20 bits of 64 are left, and 37 % of neighbours share theirs: broken by number, 58 % would rise.
    group = np.zeros(count, np.int32)
    group[0] = 2**24 - 1
    rising = [
        (np.diff(shuffle_indices(seed, 0, 0, count, group).astype(np.int64)) > 0).mean() for seed in range(24)
    ]
    assert abs(np.mean(rising) - 0.5) < 0.04


def test_seed_number_and_purpose_each_change_the_order() -> None:
    orders = {key: tuple(shuffle_indices(*key, 100).tolist()) for key in itertools.product((0, 1), repeat=3)}
    assert len(set(orders.values())) == 8
