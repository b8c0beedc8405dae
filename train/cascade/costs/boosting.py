"""Boosted regression trees grown by scikit-learn (Friedman, "Greedy Function Approximation", 2001)."""

from typing import Any

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.trees import LEAF, BoostedTrees, Tree

_TREES, _DEPTH, _RATE, _LEAST_ROWS = 64, 3, 0.1, 2


def boost_trees(features_NF: Floats, values_N: Floats, weights_N: Floats) -> BoostedTrees:
    """Fit trees to rows by weighted squared error; deterministic. The paper uses XGBoost.

    Args:
        features_NF: features, exact in float32, in which trees are grown.
        values_N: targets.
        weights_N: weight of each row.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import GradientBoostingRegressor
    except ImportError as error:
        raise UsageError("cost models need scikit-learn: pip install 'reelweave[cascade]'") from error
    grown = GradientBoostingRegressor(
        n_estimators=_TREES,
        max_depth=_DEPTH,
        learning_rate=_RATE,
        min_samples_leaf=_LEAST_ROWS,
        random_state=0,
    ).fit(features_NF, values_N, weights_N)
    return BoostedTrees(
        features=features_NF.shape[1],
        first=float(grown.init_.constant_.item()),
        rate=_RATE,
        trees=tuple(_plain(estimator.tree_) for estimator in grown.estimators_[:, 0]),
    )


def _plain(tree: Any) -> Tree:
    return Tree(
        feature=np.maximum(tree.feature, LEAF).tolist(),  # scikit-learn marks leaves with -2
        threshold=tree.threshold.tolist(),
        left=tree.children_left.tolist(),
        right=tree.children_right.tolist(),
        value=tree.value[:, 0, 0].tolist(),
    )
