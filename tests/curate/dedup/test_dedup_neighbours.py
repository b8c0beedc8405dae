"""Near neighbours and clusters: the same whatever the blocks, and with torch."""

import sys

import numpy as np
import pytest

from curate.dedup import cells, neighbours, products
from curate.dedup.cells import InvertedFile
from curate.dedup.clusters import clusters
from curate.dedup.kmeans import on_grid
from curate.dedup.neighbours import near_pairs, near_references
from curate.dedup.products import TorchBlocks
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


def torch_blocks(rows: np.ndarray, columns: np.ndarray, _: str) -> TorchBlocks:
    return TorchBlocks(rows, columns, "cpu")


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
        monkeypatch.setattr(neighbours, "blocks", torch_blocks)
    vectors, others = unit(333, 8, 1), unit(210, 8, 2)
    within = [(one, other) for one, other, _ in near_pairs(vectors, 0.3, most)]
    assert within == by_hand(vectors.astype(float) @ vectors.T, 0.3, most, earlier=True)
    across = [(one, other) for one, other, _ in near_references(vectors, others, 0.3, most)]
    assert across == by_hand(vectors.astype(float) @ others.T, 0.3, most, earlier=False)
    assert len(within) > 333


def scenes(count: int, width: int, seed: int) -> np.ndarray:
    """Unit vectors around a tenth as many centres."""
    rng = np.random.default_rng(seed)
    centres = unit(count // 10, width, seed)
    vectors = centres[rng.integers(len(centres), size=count)] + rng.normal(
        scale=0.4 / width**0.5, size=(count, width)
    )
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def test_near_cells_hold_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CELL", 50)
    monkeypatch.setattr(neighbours, "_ROWS_OF_CELLS", 700)
    vectors, others = scenes(4000, 24, 1), scenes(3000, 24, 2)
    every = list(near_pairs(vectors, 0.5, 8)), list(near_references(vectors, others, 0.6, 3))
    monkeypatch.setattr(neighbours, "CELLS_FROM", 1)
    near = list(near_pairs(vectors, 0.5, 8)), list(near_references(vectors, others, 0.6, 3))
    for expected, found in zip(every, near, strict=True):
        assert len(set(found)) == len(found)
        assert len(expected) > 1000
        both = set(expected) & set(found)
        assert len([pair for pair in both if pair[2] >= 0.8]) >= 0.999 * sum(
            near >= 0.8 for *_, near in expected
        )
        # In the same order: by the later one, then by falling cosine.
        assert [pair for pair in found if pair in both] == [pair for pair in expected if pair in both]
        most = np.bincount([later for _, later, _ in found]).max()
        assert most <= np.bincount([later for _, later, _ in expected]).max()
    assert all(earlier < later for earlier, later, _ in near[0])


def test_cells_do_not_depend_on_the_order_of_additions() -> None:
    """Columns in another order are other sums: float32 alone would round them otherwise."""
    vectors = scenes(3000, 64, 3)
    order = np.random.default_rng(0).permutation(64)
    made, again = (InvertedFile.of(each, 50) for each in (vectors, np.ascontiguousarray(vectors[:, order])))
    assert np.array_equal(made.owner, again.owner)
    assert np.array_equal(made.cells.fine[:, order], again.cells.fine)
    one, other = on_grid(vectors) @ made.cells.fine.T, on_grid(vectors[:, order]) @ again.cells.fine.T
    assert np.array_equal(one, other)
    assert not np.array_equal(vectors @ vectors.T, vectors[:, order] @ vectors[:, order].T)


def test_cells_of_any_vectors() -> None:
    for vectors in (np.ones((1, 1), np.float32), np.repeat(unit(1, 8, 0), 500, axis=0), scenes(300, 8, 4)):
        file = InvertedFile.of(vectors, 20)
        assert sorted(file.members) == list(range(len(vectors)))
        assert set(file.owner) <= set(range(len(file.cells.fine)))
        found = file.near(vectors, 0.99, 5)
        assert set(found.row) == set(range(len(vectors)))


@pytest.mark.parametrize("flat", [100, 10], ids=["one level", "two levels"])
def test_clusters_are_the_same_with_torch(flat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[clusters.__module__], "_FLAT", flat)  # the module has the function's name
    vectors = unit(500, 8, 3)
    expected = clusters(vectors, 20, 10)
    assert not np.array_equal(clusters(vectors, 20, 1), expected)
    monkeypatch.setattr(products, "blocks", torch_blocks)
    assert np.array_equal(clusters(vectors, 20, 10), expected)


def test_no_device_finds_other_pairs_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CELL", 50)
    monkeypatch.setattr(neighbours, "CELLS_FROM", 1)
    vectors = scenes(1000, 24, 5)
    expected = list(near_pairs(vectors, 0.5, 8))
    for module in (products, neighbours):
        monkeypatch.setattr(module, "blocks", torch_blocks)
    assert list(near_pairs(vectors, 0.5, 8)) == expected


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="finds none here"):
        list(near_pairs(unit(4, 8, 0), 0.5, 2, "cuda"))
    monkeypatch.setattr(neighbours, "CELLS_FROM", 1)
    with pytest.raises(UsageError, match="finds none here"):
        list(near_pairs(unit(4, 8, 0), 0.5, 2, "cuda"))
