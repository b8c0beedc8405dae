"""What an epoch draws: shares, repetitions, and every sample as often as the others of its leaf."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.errors import UsageError
from tests.loader.blend.blend_datasets import blend_of, write_dataset

A, B, C = 40, 25, 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blend")
    for name, count in (("a", A), ("b", B), ("c", C)):
        write_dataset(folder / name, count)
    return folder


def epochs(source: SampleSource, count: int, lengths: np.ndarray | None = None) -> list[Draws]:
    return [source.draws(epoch, 3, lengths) for epoch in range(count)]


def per_leaf(blend: Blend, draws: Draws) -> list[int]:
    return np.bincount(draws.leaf, minlength=len(blend.leaves)).tolist()


def assert_even(blend: Blend, drawn: list[Draws]) -> None:
    """After every epoch, each sample of a leaf came as often as the others, or once more; none but its own came."""
    counts = [Counter(dict.fromkeys(blend.rows(leaf).tolist(), 0)) for leaf in range(len(blend.leaves))]
    for draws in drawn:
        for leaf, row in zip(draws.leaf.tolist(), draws.rows.tolist(), strict=True):
            counts[leaf][row] += 1
        for leaf, count in enumerate(counts):
            assert len(count) == len(blend.rows(leaf))
            assert max(count.values()) - min(count.values()) <= 1


def test_a_dataset_alone_is_drawn_once_an_epoch(folder: Path) -> None:
    dataset = open_dataset(folder / "a")
    lengths = np.where(np.arange(A) % 3, 7, 0)
    for epoch, draws in enumerate(epochs(dataset, 3)):
        assert draws.rows.tolist() == list(range(A))
        assert set(draws.passes.tolist()) == {epoch}
    assert dataset.draws(0, 0, lengths).rows.tolist() == [row for row in range(A) if row % 3]


def test_a_blend_of_one_dataset_is_drawn_once_an_epoch(folder: Path) -> None:
    blend = blend_of(folder / "one.yaml", train={"path": "a"})
    for epoch, draws in enumerate(epochs(blend, 3)):
        assert sorted(draws.rows.tolist()) == list(range(A))
        assert set(draws.passes.tolist()) == {epoch}


def test_repetitions_and_their_fractions_come_out_exactly(folder: Path) -> None:
    parts = [
        {"path": "a", "repetitions": 1.5},
        {"path": "b", "repetitions": 0.1},
        {"path": "c", "repetitions": 3},
    ]
    blend = blend_of(folder / "repeated.yaml", train={"blend_epochized": parts})
    drawn = epochs(blend, 20)
    total = [0, 0, 0]
    for number, draws in enumerate(drawn, 1):
        total = [sum(pair) for pair in zip(total, per_leaf(blend, draws), strict=True)]
        shares = (Fraction(3, 2) * A, Fraction(1, 10) * B, Fraction(3) * C)
        assert total == [int(share * number) for share in shares]
    assert_even(blend, drawn)


def test_weights_are_shares_of_the_samples(folder: Path) -> None:
    parts = [{"path": "a", "weight": 1}, {"path": "b", "weight": 0.2}, {"path": "c", "weight": 2.8}]
    blend = blend_of(folder / "weighted.yaml", train={"blend": parts})
    drawn = epochs(blend, 25)
    total = np.zeros(3)
    for number, draws in enumerate(drawn, 1):
        assert abs(len(draws.rows) - (A + B + C)) < len(parts)
        total += per_leaf(blend, draws)
        assert np.all(np.abs(total - number * (A + B + C) * np.array([0.25, 0.05, 0.7])) < 1)
    assert_even(blend, drawn)


def test_an_epoch_has_as_many_samples_as_the_file_says(folder: Path) -> None:
    parts = [{"path": "a", "weight": 3}, {"path": "c", "weight": 1}]
    blend = blend_of(folder / "sized.yaml", train={"blend": parts, "epoch_samples": 8})
    drawn = epochs(blend, 30)
    assert [per_leaf(blend, draws) for draws in drawn] == [[6, 2]] * 30
    assert_even(blend, drawn)


def test_weights_are_shares_of_the_tokens(folder: Path) -> None:
    parts = [{"path": "a", "weight": 0.5}, {"path": "b", "weight": 0.3}, {"path": "c", "weight": 0.2}]
    blend = blend_of(
        folder / "tokens.yaml", train={"blend": parts, "weight_by": "tokens", "epoch_samples": 200}
    )
    rng = np.random.default_rng(0)
    lengths = np.empty(A + B + C, np.int64)
    limits = [(10, 20), (1000, 3000), (100, 900)]
    for leaf, (low, high) in enumerate(limits):
        lengths[blend.rows(leaf)] = rng.integers(low, high, len(blend.rows(leaf)), endpoint=True)
    drawn = epochs(blend, 40, lengths)
    total = np.zeros(3)
    # What the draws of a leaf hold differs from their number times its mean by the samples of one pass begun, at most.
    held = [len(blend.rows(leaf)) for leaf in range(3)]
    off = np.array([count / 4 * (high - low) + high for count, (low, high) in zip(held, limits, strict=True)])
    expected = np.array([float(share) for share in blend.shares(lengths)]) * [
        lengths[blend.rows(leaf)].mean() for leaf in range(3)
    ]
    assert expected / expected.sum() == pytest.approx([0.5, 0.3, 0.2], rel=1e-12)
    for number, draws in enumerate(drawn, 1):
        total += np.bincount(draws.leaf, weights=lengths[draws.rows], minlength=3)
        assert np.all(np.abs(total - number * expected) <= off)
    assert total / total.sum() == pytest.approx([0.5, 0.3, 0.2], abs=0.005)
    assert_even(blend, drawn)
    with pytest.raises(UsageError, match="lengths"):
        blend.draws(0, 3)


def test_blends_nest_in_each_other(folder: Path) -> None:
    by_tokens = {"blend": [{"path": "a"}, {"path": "b", "weight": 3}], "weight_by": "tokens"}
    counted = {"blend_epochized": [{"path": "b", "repetitions": 2}, {"path": "c"}]}
    lengths = np.ones(A + B + C, np.int64)
    blend = blend_of(
        folder / "nested.yaml",
        train={"blend": [{**by_tokens, "weight": 0.4}, {**counted, "weight": 0.6}], "epoch_samples": 1000},
    )
    lengths[blend.rows(0)] = 10
    lengths[blend.rows(1)] = 30
    # Within the first node tokens are 1 to 3, so samples are 1/10 to 3/30; the second is 2 * 25 to 11.
    assert blend.shares(lengths) == [
        200,
        200,
        Fraction(600 * 50, 61),
        Fraction(600 * 11, 61),
    ]
    outer = {"blend_epochized": [{"blend": [{"path": "a"}, {"path": "b"}], "repetitions": 2}, {"path": "c"}]}
    assert blend_of(folder / "nested2.yaml", train=outer).shares() == [65, 65, 11]


def test_samples_that_fit_no_bucket_are_not_drawn_and_change_no_share(folder: Path) -> None:
    parts = [{"path": "a", "weight": 1}, {"path": "b", "weight": 1}]
    blend = blend_of(folder / "shapeless.yaml", train={"blend": parts, "epoch_samples": 60})
    lengths = np.full(A + B, 5)
    lengths[blend.rows(0)[::2]] = 0
    drawn = epochs(blend, 4, lengths)
    assert [per_leaf(blend, draws) for draws in drawn] == [[30, 30]] * 4
    assert all(np.all(lengths[draws.rows] > 0) for draws in drawn)
    counts = np.bincount(np.concatenate([draws.rows for draws in drawn]))[blend.rows(0)[1::2]]
    assert set(counts.tolist()) == {6}
    lengths[blend.rows(0)] = 0
    with pytest.raises(UsageError, match="a has weight 1, but no sample"):
        blend.draws(0, 3, lengths)


def test_a_node_with_weight_0_is_as_if_it_were_not_there(folder: Path) -> None:
    inner = {"blend": [{"path": "b"}, {"path": "c"}], "weight": 0}
    blend = blend_of(folder / "off.yaml", train={"blend": [{"path": "a"}, inner]})
    lengths = np.ones(A + B + C, np.int64)
    lengths[blend.rows(1)] = 0  # no bucket takes them while they are off
    assert blend.shares(lengths) == [A, 0, 0]
    assert per_leaf(blend, blend.draws(2, 3, lengths)) == [A, 0, 0]


def test_passes_count_how_often_a_sample_was_drawn_by_any_leaf(folder: Path) -> None:
    parts = [
        {"path": "a", "weight": 2},
        {"path": "a", "weight": 1, "subset": {"range": ["50%", "100%"]}},
        {"path": "a", "weight": 3, "subset": {"range": ["25%", "75%"]}},
        {"path": "b"},
    ]
    blend = blend_of(folder / "twice.yaml", train={"blend": parts})
    drawn = epochs(blend, 12)
    before = Counter()
    for draws in drawn:
        for row, passed in zip(draws.rows.tolist(), draws.passes.tolist(), strict=True):
            assert passed == before[row]
            before[row] += 1
    assert_even(blend, drawn)


def test_an_epoch_is_the_same_whatever_was_drawn_before(folder: Path) -> None:
    parts = [{"path": "a", "weight": 1.7}, {"path": "b"}]
    file = folder / "pure.yaml"
    drawn = epochs(blend_of(file, train={"blend": parts}), 8)
    again = blend_of(file, train={"blend": parts}).draws(7, 3)
    assert again.rows.tolist() == drawn[7].rows.tolist()
    assert again.passes.tolist() == drawn[7].passes.tolist()


def test_passes_leaves_and_seeds_have_orders_of_their_own(folder: Path) -> None:
    blend = blend_of(
        folder / "orders.yaml", train={"blend_epochized": [{"path": "a"}, {"path": "a", "name": "b"}]}
    )
    orders = [
        tuple(draws.rows[draws.leaf == leaf].tolist())
        for draws in [blend.draws(0, 3), blend.draws(1, 3), blend.draws(0, 4)]
        for leaf in (0, 1)
    ]
    assert len(set(orders)) == 6


def test_other_weights_change_the_shares_and_nothing_else(folder: Path) -> None:
    inner = {"blend": [{"path": "a"}, {"path": "b"}], "name": "mixed"}
    blend = blend_of(folder / "stages.yaml", train={"blend": [inner, {"path": "c"}], "epoch_samples": 100})
    assert blend.shares() == [25, 25, 50]
    assert blend.reweight({"mixed/a": 3, "c": 0}).shares() == [75, 25, 0]
    assert blend.reweight([0.1, 0.4]).shares() == [10, 10, 80]
    assert blend.reweight([1, 1]).fingerprint == blend.fingerprint
    for wrong, said in (
        ({"mixd": 1}, "did you mean mixed?"),
        ({"mixed": -1}, "weight -1 of mixed"),
        ([1], "1 weights were given for 2"),
        ([0, 0], "weight is 0 for all of mixed, c"),
    ):
        with pytest.raises(UsageError) as raised:
            blend.reweight(wrong)
        assert said in str(raised.value)
