"""Near neighbours and clusters: the same whatever the blocks, and with torch."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.dedup import Vectors, cells, neighbours, products, vector_file
from reelweave.curate.dedup.cells import CellCentres, InvertedFile, owners
from reelweave.curate.dedup.clusters import clusters
from reelweave.curate.dedup.kmeans import kmeans, on_grid
from reelweave.curate.dedup.neighbours import near_pairs, near_references
from reelweave.curate.dedup.products import TorchBlocks
from reelweave.curate.dedup.vector_file import Chosen, VectorFile, as_float32
from reelweave.loader.errors import RunError, UsageError


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


def on_disk(vectors: np.ndarray, seed: int) -> Chosen:
    """Vectors of 16 bits in a file, in another order than they are asked for."""
    places = np.random.default_rng(seed).permutation(len(vectors)).astype(np.int32)
    file = VectorFile()
    file.put(np.arange(len(vectors)), vectors[np.argsort(places)].astype(np.float16))
    found = Vectors.from_file(places, file).some(np.arange(len(vectors)))
    assert isinstance(found, Chosen)
    return found


def within_cells(
    vectors: np.ndarray, others: np.ndarray, least: float, most: int, *, earlier: bool
) -> list[tuple[int, int, float]]:
    """All vectors of the near cells, compared one by one."""
    centres = CellCentres.of(others)
    owner, probed = owners(others, centres), centres.nearest(vectors, cells.PROBES)
    found = []
    for later, vector in enumerate(vectors.astype(np.float64)):
        among = np.flatnonzero(np.isin(owner, probed[later]))
        among = among[among < later] if earlier else among
        cosines = np.einsum("nd,nd->n", np.tile(vector, (len(among), 1)), others[among])
        order = np.lexsort((among, -cosines))
        found += [(int(among[at]), later, cosines[at]) for at in order[cosines[order] >= least][:most]]
    return found


def test_vectors_on_disk_give_the_pairs_of_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for module, name, value in ((cells, "CELL", 20), (cells, "_ROWS", 300), (cells, "_AT_ONCE", 7)):
        monkeypatch.setattr(module, name, value)
    for name, value in (("_ROWS_OF_CELLS", 170), ("_AT_ONCE", 64), ("_PART", 128), ("_ROWS", 50)):
        monkeypatch.setattr(neighbours, name, value)
    monkeypatch.setattr(vector_file, "_RUN", 16)
    monkeypatch.setattr(vector_file, "_GAP", 3)
    arrays = [each.astype(np.float16).astype(np.float32) for each in (scenes(900, 24, 1), scenes(700, 24, 2))]
    mine, others = (on_disk(each, seed) for seed, each in enumerate(arrays))
    for cells_from in (1, 10_000):
        monkeypatch.setattr(neighbours, "CELLS_FROM", cells_from)
        pairs, across = list(near_pairs(mine, 0.5, 6)), list(near_references(mine, others, 0.5, 6))
        assert min(len(pairs), len(across)) > 500
        assert pairs == list(near_pairs(arrays[0], 0.5, 6))
        assert across == list(near_references(*arrays, 0.5, 6))
        if cells_from == 1:
            assert pairs == within_cells(arrays[0], arrays[0], 0.5, 6, earlier=True)
            assert across == within_cells(*arrays, 0.5, 6, earlier=False)
    monkeypatch.setattr(neighbours, "CELLS_FROM", 1)
    begun = near_pairs(mine, 0.5, 6)
    next(begun)
    begun.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flat", [100, 10], ids=["one level", "two levels"])
def test_clusters_of_vectors_on_disk(flat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(500, 8, 3).astype(np.float16)
    monkeypatch.setattr(sys.modules[clusters.__module__], "_FLAT", flat)
    expected = clusters(vectors.astype(np.float32), 20, 10)
    monkeypatch.setattr(sys.modules[kmeans.__module__], "_ROWS", 64)
    assert np.array_equal(clusters(on_disk(vectors, 0), 20, 10), expected)


def test_a_file_of_vectors_keeps_all_of_them_in_the_narrowest_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_file, "_RUN", 3)
    file, first, second = VectorFile(), unit(10, 4, 0).astype(np.float16), unit(5, 4, 1)
    file.append(first)
    file.put(np.array([12, 13, 15]), first[:3])
    assert file.dtype == np.float16
    file.append(second)
    assert (len(file), file.dtype) == (21, np.float32)
    rows = np.array([20, 0, 13, 11, 13, 9])
    nothing = np.zeros(4, np.float16)
    assert np.array_equal(file[rows], np.stack([second[4], first[0], first[1], nothing, first[1], first[9]]))
    assert np.array_equal(file[:], file[np.arange(21)])
    assert file[np.zeros(0, np.intp)].shape == (0, 4)
    with pytest.raises(RunError, match="4 and 3 numbers"):
        file.append(unit(1, 3, 0))


def test_numbers_of_16_bits_become_those_of_32() -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    for some in (every, every[np.isfinite(every).all(axis=1)], every[::2]):
        assert np.array_equal(as_float32(some), some.astype(np.float32), equal_nan=True)


def test_cells_do_not_depend_on_the_order_of_additions() -> None:
    """Columns in another order are other sums: float32 alone would round them otherwise."""
    vectors = scenes(3000, 64, 3)
    order = np.random.default_rng(0).permutation(64)
    made, again = (
        InvertedFile.of(each, CellCentres.of(each, 50))
        for each in (vectors, np.ascontiguousarray(vectors[:, order]))
    )
    assert np.array_equal(made.members, again.members)
    assert np.array_equal(made.starts, again.starts)
    assert np.array_equal(made.cells.fine[:, order], again.cells.fine)
    one, other = on_grid(vectors) @ made.cells.fine.T, on_grid(vectors[:, order]) @ again.cells.fine.T
    assert np.array_equal(one, other)
    assert not np.array_equal(vectors @ vectors.T, vectors[:, order] @ vectors[:, order].T)


def test_cells_of_any_vectors() -> None:
    for vectors in (np.ones((1, 1), np.float32), np.repeat(unit(1, 8, 0), 500, axis=0), scenes(300, 8, 4)):
        file = InvertedFile.of(vectors, CellCentres.of(vectors, 20))
        assert sorted(file.members) == list(range(len(vectors)))
        assert len(file.starts) == len(file.cells.fine) + 1
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
