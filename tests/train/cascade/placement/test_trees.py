"""Boosted trees as plain numbers: the same as their library's, bounded, and always with an end."""

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.train.cascade.costs import boosting
from reelweave.train.cascade.costs.boosting import boost_trees
from reelweave.train.cascade.costs.trees import BoostedTrees, Tree


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    features = np.column_stack([draw.integers(1, 130, 200), draw.integers(0, 2, (200, 5))]).astype(np.float64)
    values = np.sin(features[:, 0]) + features[:, 1] * features[:, 3] + draw.normal(0, 0.1, 200)
    return features, values, draw.uniform(0.1, 1, 200)


def test_predictions_are_those_of_the_library(rows, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    grown = []

    class Kept(GradientBoostingRegressor):
        def fit(self, *arguments):
            grown.append(self)
            return super().fit(*arguments)

    monkeypatch.setattr("sklearn.ensemble.GradientBoostingRegressor", Kept)
    features, values, weights = rows
    ours = boost_trees(features, values, weights)
    unseen = np.random.default_rng(1).integers(0, 140, (500, 6)).astype(np.float64)
    for asked in (features, unseen):
        assert np.abs(ours.predict(asked) - grown[0].predict(asked)).max() < 1e-9
    assert len(ours.trees) == boosting._TREES


def test_the_same_rows_give_the_same_trees(rows) -> None:
    assert boost_trees(*rows) == boost_trees(*rows)


@pytest.mark.parametrize(
    "change",
    [
        {"left": (0, -1, -1)},  # a circle
        {"right": (7, -1, -1)},
        {"value": (0.0, 1.0)},
        {"value": (0.0, float("inf"), 1.0)},
        {"feature": (-2, -1, -1)},
    ],
)
def test_trees_that_do_not_end_are_refused(change) -> None:
    tree = {
        "feature": (0, -1, -1),
        "threshold": (0.5, 0.0, 0.0),
        "left": (1, -1, -1),
        "right": (2, -1, -1),
        "value": (0.0, 1.0, 2.0),
    }
    assert Tree(**tree).predict(np.array([[0.0], [1.0]])).tolist() == [1.0, 2.0]
    with pytest.raises(ValidationError):
        Tree(**tree | change)


def test_trees_are_bounded_and_ask_for_what_there_is() -> None:
    leaf = Tree(feature=(-1,), threshold=(0.0,), left=(-1,), right=(-1,), value=(2.0,))
    asks = Tree(
        feature=(3, -1, -1), threshold=(0.5,) * 3, left=(1, -1, -1), right=(2, -1, -1), value=(0.0,) * 3
    )
    assert BoostedTrees(features=1, first=1.0, rate=0.5, trees=(leaf, leaf)).predict(np.zeros((1, 1))) == [
        3.0
    ]
    with pytest.raises(ValidationError, match="asks for feature 3, and there are 3"):
        BoostedTrees(features=3, first=0.0, rate=0.1, trees=(leaf, asks))
    with pytest.raises(ValidationError, match="at most 256"):
        BoostedTrees(features=4, first=0.0, rate=0.1, trees=(leaf,) * 257)
