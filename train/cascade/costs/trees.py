"""Boosted regression trees as plain numbers: stored as JSON, evaluated without scikit-learn."""

from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from reelweave.loader.base.arrays import Floats
from reelweave.loader.settings import Settings

LEAF = -1
"""Feature index that marks a leaf."""

_MOST_TREES, _MOST_NODES, _MOST_FEATURES = 256, 127, 4096


class Tree(Settings):
    """A binary tree as arrays over nodes; the first is the root, and children follow their parents."""

    feature: tuple[Annotated[int, Field(ge=LEAF, lt=_MOST_FEATURES)], ...] = Field(
        min_length=1, max_length=_MOST_NODES, description="feature index of the node's split; -1: leaf"
    )
    threshold: tuple[FiniteFloat, ...] = Field(description="split threshold; values up to it go left")
    left: tuple[int, ...] = Field(description="index of the left child")
    right: tuple[int, ...] = Field(description="index of the right child")
    value: tuple[FiniteFloat, ...] = Field(description="prediction of a leaf")

    @model_validator(mode="after")
    def _ends(self) -> "Tree":
        nodes = len(self.feature)
        if {len(self.threshold), len(self.left), len(self.right), len(self.value)} != {nodes}:
            raise ValueError(f"a tree of {nodes} nodes needs so many values in each list")
        for node in range(nodes):
            if self.feature[node] != LEAF and not all(
                node < child < nodes for child in (self.left[node], self.right[node])
            ):
                raise ValueError(f"node {node} has a child that does not come after it")
        return self

    def predict(self, features_NF: Floats) -> Floats:
        """Return the leaf value of each row, float64 [N]."""
        feature, threshold, left_child, right, value = map(
            np.array, (self.feature, self.threshold, self.left, self.right, self.value)
        )
        rows = np.arange(len(features_NF))
        node_N = np.zeros(len(rows), np.int64)
        while (feature[node_N] != LEAF).any():
            asks_N = feature[node_N] != LEAF
            goes_left_N = features_NF[rows, feature[node_N]] <= threshold[node_N]
            node_N = np.where(asks_N, np.where(goes_left_N, left_child[node_N], right[node_N]), node_N)
        return np.asarray(value[node_N], np.float64)


class BoostedTrees(Settings):
    """A constant, and trees that each correct the sum before them."""

    features: int = Field(ge=1, le=_MOST_FEATURES, description="number of features of a row")
    first: FiniteFloat = Field(description="initial prediction of all rows")
    rate: FiniteFloat = Field(ge=0, description="learning rate: share of a tree's value that is added")
    trees: tuple[Tree, ...] = Field(max_length=_MOST_TREES, description="trees in order of growth")

    @model_validator(mode="after")
    def _asks_what_there_is(self) -> "BoostedTrees":
        max_feature = max((max(tree.feature) for tree in self.trees), default=LEAF)
        if max_feature >= self.features:
            raise ValueError(f"a tree asks for feature {max_feature}, and there are {self.features}")
        return self

    def predict(self, features_NF: Floats) -> Floats:
        """Return the prediction of each row, float64 [N]."""
        found_N = np.full(len(features_NF), self.first)
        for tree in self.trees:
            found_N += self.rate * tree.predict(features_NF)
        return found_N
