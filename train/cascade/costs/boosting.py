"""Growing boosted trees with scikit-learn (Friedman, "Greedy Function Approximation", 2001; the paper has XGBoost)."""

from typing import Any

import numpy as np

from loader.base.arrays import Floats
from loader.errors import UsageError
from train.cascade.costs.trees import LEAF, BoostedTrees, Tree

_TREES, _DEPTH, _RATE, _LEAST_ROWS = 64, 3, 0.1, 2


def boosted(features_NF: Floats, values_N: Floats, weights_N: Floats) -> BoostedTrees:
    """Trees whose squared errors on these rows are small; the same on every call.

    Args:
        features_NF: exact in float32, which is what trees are grown on.
        values_N: to be predicted.
        weights_N: how much each row counts.

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
        trees=tuple(_plain(one.tree_) for one in grown.estimators_[:, 0]),
    )


def _plain(tree: Any) -> Tree:
    return Tree(
        feature=np.maximum(tree.feature, LEAF).tolist(),  # theirs mark leaves with -2
        threshold=tree.threshold.tolist(),
        left=tree.children_left.tolist(),
        right=tree.children_right.tolist(),
        value=tree.value[:, 0, 0].tolist(),
    )
