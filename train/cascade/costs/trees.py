"""Boosted regression trees as plain numbers: kept as JSON, evaluated without the library that grew them."""

from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, model_validator

from loader.base.arrays import Floats

LEAF = -1
"""The feature of a node that asks nothing."""

_MOST_TREES, _MOST_NODES, _MOST_FEATURES = 256, 127, 4096


class Tree(BaseModel, frozen=True, extra="forbid"):
    """A binary tree, node by node; the first is its root, and children come after their parents."""

    feature: tuple[Annotated[int, Field(ge=LEAF, lt=_MOST_FEATURES)], ...] = Field(
        min_length=1, max_length=_MOST_NODES, description="that a node asks for; -1: it is a leaf"
    )
    threshold: tuple[FiniteFloat, ...] = Field(description="values up to it go left")
    left: tuple[int, ...] = Field(description="node to the left")
    right: tuple[int, ...] = Field(description="node to the right")
    value: tuple[FiniteFloat, ...] = Field(description="of a leaf")

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
        """The leaf's value of each row, float64 [N]."""
        feature, threshold, left, right, value = map(
            np.array, (self.feature, self.threshold, self.left, self.right, self.value)
        )
        rows = np.arange(len(features_NF))
        node_N = np.zeros(len(rows), np.int64)
        while (feature[node_N] != LEAF).any():
            asks_N = feature[node_N] != LEAF
            goes_left_N = features_NF[rows, feature[node_N]] <= threshold[node_N]
            node_N = np.where(asks_N, np.where(goes_left_N, left[node_N], right[node_N]), node_N)
        return np.asarray(value[node_N], np.float64)


class BoostedTrees(BaseModel, frozen=True, extra="forbid"):
    """A first guess, and trees that each correct what is before them."""

    features: int = Field(ge=1, le=_MOST_FEATURES, description="of a row")
    first: FiniteFloat = Field(description="guess of all rows")
    rate: FiniteFloat = Field(ge=0, description="share of a tree's value that is added")
    trees: tuple[Tree, ...] = Field(max_length=_MOST_TREES, description="in their order")

    @model_validator(mode="after")
    def _asks_what_there_is(self) -> "BoostedTrees":
        asked = max((max(tree.feature) for tree in self.trees), default=LEAF)
        if asked >= self.features:
            raise ValueError(f"a tree asks for feature {asked}, and there are {self.features}")
        return self

    def predict(self, features_NF: Floats) -> Floats:
        """Of each row, float64 [N]."""
        found_N = np.full(len(features_NF), self.first)
        for tree in self.trees:
            found_N += self.rate * tree.predict(features_NF)
        return found_N
