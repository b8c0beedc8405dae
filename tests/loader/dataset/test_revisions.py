"""A dataset changes in one step: readers see the revision before or the one after, whole."""

from pathlib import Path

import pytest

from reelweave.loader.dataset import (
    Content,
    Dataset,
    ShardRecord,
    next_shard_number,
    open_dataset,
    publish,
    settle,
    verify,
    write_shard,
)
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.loader.dataset.test_dataset import make_sample, problems, write
from tests.s3server import make_bucket, s3_server


def accounted(shards: list[ShardRecord]) -> Content:
    rows = [row for shard in shards for row in shard.rows]
    names = ("source", "start_s", "end_s", "key")
    return Content(
        accounting=[
            {**{name: row[name] for name in names}, "state": "kept", "stage": "", "reason": ""}
            for row in rows
        ],
        scores=[
            {**{name: row[name] for name in names}, "state": "kept", "scores": row["scores"]} for row in rows
        ],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "dataset", [make_sample(number) for number in range(7)])


def grown(folder: Path) -> list[ShardRecord]:
    """The dataset's shards and a new one, already written."""
    dataset = open_dataset(folder)
    present = dataset.shards()
    return [
        *present,
        write_shard(dataset.storage, len(present), [make_sample(20), make_sample(21)]),
    ]


def test_shards_beyond_a_million_are_counted_on(tmp_path: Path) -> None:
    numbers = (100_001, 999_999, 1_000_000)
    shards = [write_shard(open_storage(tmp_path), number, [make_sample(number % 97)]) for number in numbers]
    publish(open_storage(tmp_path), shards, accounted(shards))
    assert problems(tmp_path) == []
    assert open_dataset(tmp_path).read_member(0, "mp4")
    assert next_shard_number(shards) == 1_000_001
    assert next_shard_number([]) == 0


def test_new_shards_leave_the_old_ones_alone(folder: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("shards/*")}
    shards = grown(folder)
    manifest = publish(open_storage(folder), shards, accounted(shards), open_dataset(folder).manifest)
    assert manifest.revision == 1
    assert problems(folder) == []
    assert open_dataset(folder).index.num_rows == 9
    for path, state in before.items():
        assert (path.read_bytes(), path.stat().st_mtime_ns) == state


def test_until_the_manifest_stands_the_old_revision_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = grown(folder)
    storage = open_storage(folder)

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(storage), "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        publish(storage, shards, accounted(shards), open_dataset(folder).manifest)
    assert open_dataset(folder).index.num_rows == 7
    unlisted = [problem for problem in problems(folder) if "does not list it" not in problem]
    assert unlisted == []
    settle(open_dataset(folder))
    assert problems(folder) == []


def test_what_a_killed_change_left_undone_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = grown(folder)
    with monkeypatch.context() as killed:
        killed.setattr("reelweave.loader.dataset.publishing.writer.settle_files", lambda *_: None)
        publish(open_storage(folder), shards, accounted(shards), open_dataset(folder).manifest)
    assert open_dataset(folder).index.num_rows == 9
    assert (folder / "index.parquet").exists()
    settle(open_dataset(folder))
    assert problems(folder) == []
    assert (folder / "index.parquet").read_bytes() == (folder / "index.000001.parquet").read_bytes()


def test_names_of_the_first_revision_are_completed_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is neither a link nor a rename; what is missing is copied from the listed table."""
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")
        storage = open_storage("s3://bucket/set", StorageConfig(endpoint_url=endpoint))
        shards = [write_shard(storage, 0, [make_sample(1)])]
        first = publish(storage, shards, accounted(shards))
        shards.append(write_shard(storage, 1, [make_sample(2)]))
        with monkeypatch.context() as killed:
            killed.setattr("reelweave.loader.dataset.publishing.writer.settle_files", lambda *_: None)
            publish(storage, shards, accounted(shards), first)
        assert [one for one in verify(storage).problems if one.startswith("index.parquet is of another")]
        settle(Dataset(storage))
        for name in ("index", "accounting", "scores"):
            assert storage.read(f"{name}.parquet") == storage.read(f"{name}.000001.parquet")
        assert storage.read("plan.arrow") == storage.read("plan.000001.arrow")
        assert verify(storage).problems == []


def test_two_who_change_it_at_once_do_not_overwrite_each_other(folder: Path) -> None:
    seen_by_both = open_dataset(folder).manifest
    shards = grown(folder)
    publish(open_storage(folder), shards, accounted(shards), seen_by_both)
    with pytest.raises(RunError, match="changed by another writer"):
        publish(open_storage(folder), shards[:1], accounted(shards[:1]), seen_by_both)
    assert open_dataset(folder).index.num_rows == 9


def test_a_change_that_changes_nothing_is_none(folder: Path) -> None:
    shards = grown(folder)
    first = publish(open_storage(folder), shards, accounted(shards), open_dataset(folder).manifest)
    again = publish(open_storage(folder), open_dataset(folder).shards(), accounted(shards), first)
    assert again == first
    assert problems(folder) == []


def test_a_sample_read_back_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(folder)
    for number, shard in enumerate(dataset.shards()):
        samples = [dataset.sample(dataset.row_numbers[row["key"]]) for row in shard.rows]
        copy = write_shard(open_storage(tmp_path / "copy"), number, samples)
        assert (copy.sha256, copy.rows) == (shard.sha256, shard.rows)


def test_a_wrong_embedding_is_found(folder: Path) -> None:
    rows = to_rows(open_dataset(folder).index)
    row = next(row for row in rows if row["embeddings"])
    member = next(member for member in row["members"] if member["suffix"] == "video.npy")
    path = folder / row["shard"]
    data = bytearray(path.read_bytes())
    data[member["offset"] + member["size"] - 1] ^= 1
    path.write_bytes(data)
    found = verify(open_storage(folder)).problems
    assert len(found) == 1
    assert row["key"] in found[0]


def test_splits_reach_energon(tmp_path: Path) -> None:
    import yaml

    storage = open_storage(tmp_path / "dataset")
    shards = [
        write_shard(storage, 0, [make_sample(1)]),
        write_shard(storage, 1, [make_sample(2, split="val")]),
    ]
    publish(storage, shards, accounted(shards))
    parts = yaml.safe_load((tmp_path / "dataset/.nv-meta/split.yaml").read_text())["split_parts"]
    assert parts == {"train": [shards[0].path], "val": [shards[1].path], "test": []}
