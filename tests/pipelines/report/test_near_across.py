"""Clips of val that are nearly clips of train, by their embeddings."""

import numpy as np

from reelweave.pipelines.report.numbers.vector_map import near_across


def test_nearly_equal_clips_across_a_split_are_counted_and_named() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(1200, 64))
    is_val = np.arange(1200) >= 600
    vectors[600] = vectors[5] + 0.01 * random.normal(size=64)
    vectors[1199] = vectors[7]
    vectors[700] = vectors[701]  # both in val
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    found = near_across(vectors, is_val)
    assert found is not None
    assert (found.val, found.train, found.near) == (600, 600, 2)
    assert [pair[:2] for pair in found.pairs] == [(1199, 7), (600, 5)]
    assert near_across(vectors, np.zeros(1200, np.bool_)) is None
