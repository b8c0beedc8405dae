"""Near neighbours and clusters: the same whatever the blocks, and with torch."""

import numpy as np
import pytest

from curate.dedup import neighbours
from curate.dedup.clusters import clusters
from curate.dedup.neighbours import TorchBlocks, near_pairs, near_references
from loader.errors import UsageError


def test_clusters_gather_what_is_near_and_every_near_pair_inside_is_seen() -> None:
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(8, 32))
    vectors = np.repeat(centres, 50, axis=0) + rng.normal(size=(400, 32)) * 0.05
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    nearest = clusters(vectors, 50, 30)
    assert np.array_equal(nearest, clusters(vectors, 50, 30))
    groups = nearest.reshape(8, 50)
    assert all(len(set(group.tolist())) == 1 for group in groups)
    pairs = {(one, other) for one, other, _ in near_pairs(vectors, 0.9, 400)}
    assert pairs == {(one, other) for other in range(400) for one in range(other // 50 * 50, other)}


def unit(rows: int, width: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_hand(cosines: np.ndarray, least: float, most: int, *, earlier: bool) -> list[tuple[int, int]]:
    found = []
    for later, row in enumerate(cosines):
        near = [at for at in range(later if earlier else len(row)) if row[at] >= least]
        found += [(at, later) for at in sorted(near, key=lambda at: (-row[at], at))[:most]]
    return found


@pytest.mark.parametrize("most", [3, 500])
@pytest.mark.parametrize("torch", [False, True])
def test_near_pairs_are_those_of_the_whole_matrix(
    most: int, torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_ROWS", 64)
    monkeypatch.setattr(neighbours, "_COLUMNS", 100)
    if torch:
        monkeypatch.setattr(neighbours, "_blocks", lambda rows, columns, _: TorchBlocks(rows, columns, "cpu"))
    vectors, others = unit(333, 8, 1), unit(210, 8, 2)
    within = [(one, other) for one, other, _ in near_pairs(vectors, 0.3, most)]
    assert within == by_hand(vectors.astype(float) @ vectors.T, 0.3, most, earlier=True)
    across = [(one, other) for one, other, _ in near_references(vectors, others, 0.3, most)]
    assert across == by_hand(vectors.astype(float) @ others.T, 0.3, most, earlier=False)
    assert len(within) > 333


def test_clusters_are_the_same_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(500, 8, 3)
    expected = clusters(vectors, 20, 10)
    monkeypatch.setattr(neighbours, "_blocks", lambda rows, columns, _: TorchBlocks(rows, columns, "cpu"))
    assert np.array_equal(clusters(vectors, 20, 10), expected)


def test_a_gpu_that_is_not_there_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="finds none here"):
        list(near_pairs(unit(4, 8, 0), 0.5, 2, "cuda"))
