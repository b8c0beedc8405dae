"""The search index: the same neighbours, of one revision, and nothing of what was taken down."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.search import cell_file
from reelweave.curate.search.cell_file import CellFile, make_search_index
from reelweave.curate.search.search import ClipSearch, Hit
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Dataset, Removal, open_dataset, verify
from reelweave.loader.dataset.manifest import SEARCH
from reelweave.loader.dataset.tables import parquet, row_parts, table_reader
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from tests.commands import reelweave
from tests.curate.search.test_search import sample, write

SAMPLES = 61


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset whose index, parts and cells are small, so that there are several of each."""
    for module, name, value in (
        *((parquet, "GROUP_ROWS", 16), (table_reader, "GROUP_ROWS", 16), (parquet, "_BATCH_ROWS", 8)),
        *((row_parts, "ROWS", 20), (row_parts, "_HELD_BYTES", 1)),
        *((cell_file, "_CELL", 6), (cell_file, "_SAMPLE", 4)),
    ):
        monkeypatch.setattr(module, name, value)
    vectors = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float16)
    held = [None if number % 20 == 7 else vector for number, vector in enumerate(vectors)]
    return write(tmp_path / "dataset", [sample(number, b"clip", one) for number, one in enumerate(held)])


def key(dataset: Dataset, row: int) -> str:
    return str(dataset.rows_at(np.array([row]), ["key"]).column("key")[0])


def rows(hits: list[Hit]) -> list[int]:
    return [hit.row_number for hit in hits]


def test_all_cells_hold_what_all_vectors_do(dataset: Dataset) -> None:
    exact = ClipSearch(dataset)
    made = make_search_index(dataset)
    assert len(made) == SAMPLES - 3
    assert len(made.cells.fine) > 4
    again = open_dataset(dataset.storage.root)
    search = ClipSearch(again)
    assert search.searched == len(made)
    # So many cells are probed that none is left out.
    for row in (3, 40):
        found, expected = search.by_key(key(again, row), 9), exact.by_key(key(again, row), 9)
        assert rows(found) == rows(expected)
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=2e-3)
    assert "index" not in again.__dict__  # keys and captions are read by row groups


def test_few_probes_read_few_cells(dataset: Dataset) -> None:
    made = make_search_index(dataset)
    query = np.frombuffer(dataset.storage.read(made.folder + "vectors.bin"), np.float16).reshape(-1, 8)[5]
    found, scores = made.nearest(query.astype(np.float32), SAMPLES, probes=2)
    assert 1 <= len(found) <= len(made) / 2
    assert scores[0] == pytest.approx(1, abs=2e-3)


def test_a_take_down_leaves_nothing_of_a_vector(dataset: Dataset) -> None:
    make_search_index(dataset)
    gone = key(dataset, 12)
    folder = Path(dataset.storage.root)
    made = CellFile.open(dataset.storage, dataset.manifest)
    assert made is not None
    vectors = (folder / made.folder / "vectors.bin").read_bytes()
    order = np.fromfile(folder / made.folder / "rows.bin", np.int64).tolist()
    own = vectors[16 * order.index(12) :][:16]
    remove(open_storage(folder), Removal(key=gone, date="2026-01-01", reason="asked for", samples=0))
    assert not [path for path in folder.rglob("*") if path.is_file() and own in path.read_bytes()]
    assert not list(folder.joinpath(SEARCH).rglob("*.bin"))
    now = open_dataset(folder)
    assert make_search_index(now).starts[-1] == SAMPLES - 4
    assert gone not in {key(now, row) for row in rows(ClipSearch(now).by_key(key(now, 3), SAMPLES))}
    (folder / SEARCH / "0123").mkdir()
    (folder / SEARCH / "0123/vectors.bin").write_bytes(vectors)
    assert any("another revision" in problem for problem in verify(now.storage).problems)


def test_an_index_of_another_revision_or_a_damaged_one_is_never_used(dataset: Dataset) -> None:
    made = make_search_index(dataset)
    folder = Path(dataset.storage.root) / made.folder
    later = dataset.manifest.model_copy(update={"files": [*dataset.manifest.files]})
    assert CellFile.open(dataset.storage, later) is not None
    data = (folder / "vectors.bin").read_bytes()
    (folder / "vectors.bin").write_bytes(data[:-2])
    with pytest.raises(RunError, match="--index"):
        ClipSearch(dataset)
    (folder / "vectors.bin").write_bytes(data)
    header = json.loads((folder / "search.json").read_text())
    (folder / "search.json").write_text(json.dumps({**header, "width": 10**12}))
    with pytest.raises(RunError, match="damaged"):
        ClipSearch(dataset)
    (folder / "search.json").unlink()
    assert ClipSearch(dataset).searched == SAMPLES - 3


def test_the_command_makes_and_uses_it(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    root = dataset.storage.root
    made = json.loads(reelweave("search", root, "--index", "--json").stdout)
    assert made["vectors"] == SAMPLES - 3
    found = json.loads(reelweave("search", root, "--like", key(dataset, 3), "--top", "4", "--json").stdout)
    exact = json.loads(
        reelweave("search", root, "--like", key(dataset, 3), "--top", "4", "--exact", "--json").stdout
    )
    assert [hit["key"] for hit in found["hits"]] == [hit["key"] for hit in exact["hits"]]
    assert dataset.row_number("no such key") is None


def test_a_dataset_without_vectors_has_no_search_index(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", [sample(0, b"clip", None)])
    with pytest.raises(UsageError, match="no video embeddings"):
        make_search_index(bare)
