"""Numbers of the map of embeddings, against recomputations that share no code with them."""

import math
import sys

import numpy as np
import pytest

from reelweave.pipelines.report.numbers.places import spread
from reelweave.pipelines.report.numbers.vector_map import (
    MOST_CLUSTERS,
    MOST_DIMENSIONS,
    NEIGHBOURS,
    neighbour_map,
    outlier_fence,
    outlier_scores,
    principal_map,
    reduce_vectors,
    vector_clusters,
)


def vectors(count: int, width: int = 24, seed: int = 0, kind: type = np.float16) -> np.ndarray:
    """Three blobs of unit vectors, in no order."""
    drawn = np.random.default_rng(seed)
    centres = drawn.standard_normal((3, width))
    found = centres[blob_of(count)] + 0.15 * drawn.standard_normal((count, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(kind)


def blob_of(count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 3, count)


def assert_unmixed(number_N: np.ndarray) -> None:
    """More clusters than blobs may be found, but none holds clips of two."""
    blobs = [set(number_N[blob_of(len(number_N)) == blob].tolist()) for blob in range(3)]
    assert sum(map(len, blobs)) == len(set.union(*blobs)) >= 3


def test_coordinates_are_those_of_a_singular_value_decomposition() -> None:
    found = vectors(5000)  # more than one piece
    points, explained = principal_map(found)
    centred = found.astype(np.float64) - found.astype(np.float64).mean(0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        largest = np.argmax(np.abs(axes[axis]))
        expected = centred @ axes[axis] * (1 if axes[axis][largest] > 0 else -1)
        np.testing.assert_allclose(points[:, axis], expected, atol=1e-5)
    np.testing.assert_allclose(explained, values[:2] ** 2 / (values**2).sum(), rtol=1e-9)


def test_coordinates_do_not_depend_on_the_order_of_clips() -> None:
    found = vectors(300)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_allclose(principal_map(found)[0][order], principal_map(found[order])[0], atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_equal_vectors_lie_on_one_place(count: int) -> None:
    same = np.tile(vectors(1), (count, 1))
    points, explained = principal_map(same)
    assert not points.any()
    assert explained == [0, 0]
    assert set(vector_clusters(same).number_N.tolist()) == {1}
    assert np.abs(outlier_scores(same)).max() < 1e-2  # of 16-bit numbers
    assert not (outlier_scores(same) > outlier_fence(outlier_scores(same))).any()
    assert len(principal_map(np.ones((count, 1), np.float32))[0]) == count


def test_clusters_are_the_blobs_and_the_largest_is_the_first() -> None:
    found = vectors(89)
    clusters = vector_clusters(found)
    assert_unmixed(clusters.number_N)
    sizes = np.bincount(clusters.number_N)[1:]
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
    assert 1 <= len(sizes) <= MOST_CLUSTERS
    for number in range(1, len(sizes) + 1):
        own = found[clusters.number_N == number].astype(np.float64)
        centre = own.mean(0) / np.linalg.norm(own.mean(0))
        np.testing.assert_allclose(clusters.likeness_N[clusters.number_N == number], own @ centre, atol=2e-2)


def test_many_vectors_go_to_the_nearest_centre_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    found = vectors(600)
    monkeypatch.setattr("reelweave.pipelines.report.numbers.vector_map.FITTED", 100)
    assert_unmixed(vector_clusters(found).number_N)


def test_outlier_scores_are_those_of_all_pairs() -> None:
    found = vectors(120, kind=np.float32)
    cosines = found.astype(np.float64) @ found.T.astype(np.float64)
    np.fill_diagonal(cosines, -2)
    expected = 1 - np.sort(cosines, axis=1)[:, -NEIGHBOURS:].mean(1)
    np.testing.assert_allclose(outlier_scores(found), expected, atol=1e-6)


def test_a_clip_that_is_like_no_other_lies_beyond_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = vectors(400)
    found[37] = -found[37]
    scores = outlier_scores(found)
    first, third = np.quantile(scores, [0.25, 0.75])
    assert outlier_fence(scores) == pytest.approx(third + 3 * (third - first), abs=1e-5)
    assert np.flatnonzero(scores > outlier_fence(scores)).tolist() == [37]
    monkeypatch.setattr(
        "reelweave.pipelines.report.numbers.vector_map.REFERENCES", 50
    )  # a sample finds it, too
    some = outlier_scores(found)
    assert np.argmax(some) == 37
    assert some[37] > outlier_fence(some)
    assert outlier_fence(scores[:7]) == math.inf


def test_long_vectors_keep_their_angles() -> None:
    found = vectors(60, width=5000)
    short = reduce_vectors(found)
    assert short.shape == (60, MOST_DIMENSIONS)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(
        short @ short.T, found.astype(np.float32) @ found.T.astype(np.float32), atol=0.15
    )
    assert reduce_vectors(found[:, :9]).shape == (60, 9)
    assert np.array_equal(short, reduce_vectors(found))


def test_places_are_evenly_spread() -> None:
    assert spread(100, 4) == [12, 37, 62, 87]
    assert spread(3, 8) == [0, 1, 2]
    assert spread(0, 8) == []
    assert spread(2**63 - 1, 2) == [2**61 - 1, 3 * 2**61 - 1]


def test_without_umap_there_is_no_map_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    assert neighbour_map(vectors(30)) is None
