"""Datasets of many rows are checked and published part by part, with the same words and bytes."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Content, Removal, open_dataset, publish
from reelweave.loader.dataset.schema import Row
from reelweave.loader.dataset.shard import parsed_sample
from reelweave.loader.dataset.tables import parquet, row_parts, table_reader
from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from tests.loader.dataset.test_dataset import make_sample, problems, tree, write
from tests.loader.dataset.test_hostile_dataset import changed_table

SAMPLES = 23

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards, which no test changes."""
    return write(
        tmp_path_factory.mktemp("parts") / "dataset",
        [make_sample(number) for number in range(SAMPLES)],
        60_000,
    )


@pytest.fixture
def by_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes parts of a few rows, each in a file of its own."""

    def small() -> None:
        monkeypatch.setattr(row_parts, "ROWS", 5)
        monkeypatch.setattr(row_parts, "_HELD_BYTES", 1)
        monkeypatch.setattr(parquet, "_BATCH_ROWS", 4)

    return small


def twice(rows: Rows) -> None:
    rows[7]["key"] = rows[8]["key"]


def unsorted(rows: Rows) -> None:
    rows[3], rows[4] = rows[4], rows[3]  # the last of one part, and the first of the next


def many_wrong(rows: Rows) -> None:
    for row in rows[2:20]:
        row["frames"] = -1


def in_another_shard(rows: Rows) -> None:
    rows[0]["shard"], rows[-1]["shard"] = rows[-1]["shard"], rows[0]["shard"]


def several_splits(rows: Rows) -> None:
    rows[5]["split"] = "val"


def other_accounting(rows: Rows) -> None:
    rows[1]["key"], rows[2]["key"] = "nobody", rows[3]["key"]
    rows[4] |= {"state": "duplicate", "duplicate_of": "nothing", "reason": ""}
    rows[9]["source"] = rows[10]["source"] = rows[11]["source"]
    rows[20] |= {"start_s": None, "end_s": None, "state": "failed", "source": rows[21]["source"]}


def other_scores(rows: Rows) -> None:
    for number in (0, 6, 12):
        rows.append(
            {"key": f"k{number}", "source": "a", "start_s": 0.0, "end_s": 1.0, "state": "kept", "scores": {}}
        )


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("index", twice),
        ("index", unsorted),
        ("index", many_wrong),
        ("index", in_another_shard),
        ("index", several_splits),
        ("accounting", other_accounting),
        ("scores", other_scores),
    ],
)
def test_the_same_is_found_by_parts(
    made: Path, tmp_path: Path, by_parts: Callable[[], None], table: str, change: Callable[[Rows], None]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    changed_table(folder, table, change)
    found = problems(folder)
    by_parts()
    assert found
    assert sorted(problems(folder)) == sorted(found)


def test_parts_do_not_show_in_what_is_published(
    made: Path, tmp_path: Path, by_parts: Callable[[], None]
) -> None:
    by_parts()
    again = write(tmp_path / "dataset", [make_sample(number) for number in range(SAMPLES)], 60_000)
    assert tree(again) == tree(made)
    with pytest.raises(RunError, match=r"occurs twice, in shards/000000-.* and shards/000000-"):
        write(tmp_path / "twice", [make_sample(number % 12) for number in range(SAMPLES)], 1_000_000)


def test_tables_may_come_by_batches(made: Path, tmp_path: Path) -> None:
    dataset = open_dataset(made)
    copy = Path(shutil.copytree(made / "shards", tmp_path / "copy/shards")).parent
    tables = (dataset.accounting, dataset.scores)
    accounting, scores = (
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3)) for table in tables
    )
    manifest = dataset.manifest
    publish(
        open_storage(copy),
        dataset.shards(),
        Content(accounting, scores, manifest.config, manifest.versions),
    )
    assert tree(copy) == tree(made)


@pytest.mark.parametrize("rows", [[], [7], [22, 0, 15, 16, 3, 22], [*range(SAMPLES)][::-1]])
def test_rows_of_a_large_index_are_read_by_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    for module, name, value in (
        (parquet, "GROUP_ROWS", 8),
        (table_reader, "GROUP_ROWS", 8),
        (parquet, "_BATCH_ROWS", 3),
    ):
        monkeypatch.setattr(module, name, value)
    dataset = write(tmp_path / "dataset", [make_sample(number) for number in range(SAMPLES)], 60_000)
    large = open_dataset(dataset)
    found = large.rows_at(np.array(rows, np.int64), ["caption", "key", "scores"])
    assert "index" not in vars(large)
    index = open_dataset(dataset).index
    assert (
        found.to_pylist()
        == index.select(["caption", "key", "scores"]).take(pa.array(rows, pa.int64())).to_pylist()
    )
    with pytest.raises(RunError, match=f"has {SAMPLES} rows, and not one of number {SAMPLES}"):
        large.rows_at(np.array([0, SAMPLES]), ["key"])


def test_samples_of_a_large_dataset_are_read_without_its_index(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [open_dataset(made)[row] for row in range(SAMPLES)]
    monkeypatch.setattr(table_reader, "GROUP_ROWS", 0)
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    large = open_dataset(copy)
    (copy / "index.parquet").rename(copy / "index")
    for row in (22, 3, -4):
        assert (large[row].row, large[row].clip) == (small[row].row, small[row].clip)
        assert large[row].embeddings == small[row].embeddings
    (copy / "index").rename(copy / "index.parquet")
    place = large.plan_index
    with (copy / large.manifest.shards[place.shard[3]].path).open("r+b") as tar:
        tar.seek(place.offset[3] + 700)
        tar.write(b"\0damage")
    with pytest.raises(RunError, match=r"000\d+-.*\.tar: sample [0-9a-f]+: it is damaged.*reelweave verify"):
        large[3]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("caption"),
        lambda row: row.update(frames="many"),
        lambda row: row.update(key="other"),
    ],
)
def test_a_sample_without_its_whole_row_is_known(change: Callable[[Row], object]) -> None:
    sample = make_sample(1)
    row, contents = sample.finish()
    told = json.loads(dict(contents)["json"])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for suffix, content in contents:
            if suffix == "json":
                change(told)
                content = json.dumps(told).encode()
            member = tarfile.TarInfo(f"{row['key']}.{suffix}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert parsed_sample(buffer.getvalue()) is None


def test_a_revision_by_parts_has_the_same_bytes(
    made: Path, tmp_path: Path, by_parts: Callable[[], None]
) -> None:
    one, other = (Path(shutil.copytree(made, tmp_path / name)) for name in ("one", "other"))
    for folder, small in ((one, None), (other, by_parts)):
        if small:
            small()
        for number in (0, 9, 22):
            gone = (
                {"source": make_sample(number).row["source"]}
                if number
                else {"key": make_sample(0).row["key"]}
            )
            remove(open_storage(folder), Removal(**gone, date="2026-01-01", reason="asked for", samples=0))
    assert tree(other) == tree(one)
    assert problems(other) == []


def test_many_parts_need_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_HELD_BYTES", 1)
    table = pa.table({"row": np.arange(200)})
    with row_parts.RowParts(table.schema, 100) as rows:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for part_N in (np.arange(200) % 100, np.arange(200)[::-1] // 2):
            rows.add(table, part_N)
        assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
        assert rows.read(7).column("row").to_pylist() == [7, 107, 184, 185]


def test_a_sound_dataset_is_sound_by_parts(made: Path, by_parts: Callable[[], None]) -> None:
    by_parts()
    assert problems(made) == []
