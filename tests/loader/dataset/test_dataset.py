"""The dataset contract: what is written can be read by everybody, and damage is found and named."""

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.dataset import DatasetWriter, Sample, open_dataset, verify
from reelweave.loader.dataset.schema import INDEX, PLACEMENT
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from tests.energon import energon_samples
from tests.thorough import thorough


def make_sample(number: int, caption: str = "a red kite over the sea", **changes: object) -> Sample:
    clip = np.random.default_rng(number).bytes(3000 + 517 * number)
    source = str(changes.get("source", f"raw/kite {number}.mp4"))
    row = {
        "key": hashlib.sha256(str(number).encode()).hexdigest()[:20],
        "frames": 25 + number,
        "fps": 25.0,
        "height": 128,
        "width": 160,
        "duration_s": (25 + number) / 25,
        "text_tokens": 6,
        "caption": caption,
        "caption_source": "sidecar:kite.txt",
        "source": source,
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        "start_s": 0.0,
        "end_s": (25 + number) / 25,
        "scores": {"short_side_px": 128.0, "duration_s": (25 + number) / 25},
        "sha256": hashlib.sha256(clip).hexdigest(),
        **changes,
    }
    embeddings = {"video.npy": np.arange(4, dtype=np.float16) + number} if number % 2 else {}
    return Sample(row, clip, embeddings)


def write(folder: Path, samples: list[Sample], max_shard_bytes: int = 9000) -> Path:
    with DatasetWriter(open_storage(folder), max_shard_bytes=max_shard_bytes, config={"seed": 1}) as writer:
        for sample in samples:
            writer.add(sample)
        writer.account(
            [{"source": "raw/broken.mp4", "state": "failed", "stage": "probe", "reason": "the file is empty"}]
        )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "dataset", [make_sample(number) for number in range(7)])


def problems(folder: Path) -> list[str]:
    return verify(open_storage(folder)).problems


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_row_leads_to_its_members(folder: Path) -> None:
    dataset = open_dataset(folder)
    assert dataset.index.schema.equals(INDEX)
    assert dataset.index.column("key").to_pylist() == sorted(dataset.index.column("key").to_pylist())
    by_key = {sample.row["key"]: sample for sample in map(make_sample, range(7))}
    for number, row in enumerate(dataset.index.to_pylist(maps_as_pydicts="strict")):
        sample = by_key[row["key"]]
        assert dataset.read_member(number, "mp4") == sample.clip
        assert dataset.read_member(number, "txt").decode() == row["caption"]
        assert json.loads(dataset.read_member(number, "json")) == {
            name: value for name, value in row.items() if name not in PLACEMENT
        }


def shard_of(folder: Path, number: int) -> str:
    return open_dataset(folder).shards()[number].path


def test_a_missing_member_is_named(folder: Path) -> None:
    dataset = open_dataset(folder)
    with pytest.raises(RunError, match=dataset.index.column("key")[0].as_py()):
        dataset.read_member(0, "text.npy")


def test_members_lie_in_the_order_of_the_contract(folder: Path) -> None:
    with tarfile.open(folder / shard_of(folder, 0), "r:") as tar:
        names = tar.getnames()
        infos = tar.getmembers()
    order = {"json": 0, "txt": 1, "video.npy": 2, "mp4": 3}
    places = [(name.split(".", 1)[0], order[name.split(".", 1)[1]]) for name in names]
    keys = list(dict.fromkeys(key for key, _ in places))
    assert places == sorted(places, key=lambda place: (keys.index(place[0]), place[1]))
    assert {(info.mtime, info.uid, info.gid, info.uname) for info in infos} == {(0, 0, 0, "reelweave")}


def test_idx_holds_the_offset_of_every_sample_and_the_end(folder: Path) -> None:
    rows = [row for row in open_dataset(folder).index.to_pylist() if row["shard"] == shard_of(folder, 1)]
    rows.sort(key=lambda row: row["offset"])
    data = (folder / f"{shard_of(folder, 1)}.idx").read_bytes()
    expected = [row["offset"] for row in rows] + [rows[-1]["offset"] + rows[-1]["size"]]
    assert list(struct.unpack(f"<{len(data) // 8}Q", data)) == expected


def test_the_same_samples_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again", [make_sample(number) for number in range(7)])
    assert tree(folder) == tree(again)


def test_a_whole_dataset_verifies(folder: Path) -> None:
    result = verify(open_storage(folder))
    assert result.ok, result.problems
    assert result.samples == 7
    assert result.bytes == sum(path.stat().st_size for path in folder.glob("shards/*.tar"))


def test_any_flipped_byte_of_a_shard_is_found_and_its_key_named(folder: Path) -> None:
    rows = open_dataset(folder).index.to_pylist()
    rng = np.random.default_rng(5)
    for row in rows:
        path = folder / row["shard"]
        whole = path.read_bytes()
        places = [row["offset"], row["offset"] + row["size"] - 1, *(m["offset"] for m in row["members"])]
        places += (row["offset"] + rng.integers(0, row["size"], 4)).tolist()
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            found = problems(folder)
            assert len(found) == 1
            assert row["shard"] in found[0]
            assert row["key"] in found[0]
        path.write_bytes(whole)
    assert problems(folder) == []


def test_a_flipped_byte_behind_the_last_sample_is_found(folder: Path) -> None:
    path = folder / shard_of(folder, 0)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert len(problems(folder)) == 1
    assert shard_of(folder, 0) in problems(folder)[0]


@pytest.mark.parametrize(
    "name", ["index.parquet", "accounting.parquet", "shards/000001-*.tar.idx", ".nv-meta/index.sqlite"]
)
def test_a_flipped_byte_of_a_sidecar_is_found(folder: Path, name: str) -> None:
    [path] = folder.glob(name)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    assert any(path.name in problem for problem in problems(folder))


def test_a_changed_manifest_is_refused(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(RunError, match=r"manifest\.json is damaged"):
        problems(folder)


def test_a_truncated_shard_names_the_first_sample_it_lost(folder: Path) -> None:
    rows = [row for row in open_dataset(folder).index.to_pylist() if row["shard"] == shard_of(folder, 0)]
    last = max(rows, key=lambda row: row["offset"])
    path = folder / shard_of(folder, 0)
    path.write_bytes(path.read_bytes()[: last["offset"] + 700])
    assert any(last["key"] in problem for problem in problems(folder))


def test_missing_and_unlisted_shards_are_named(folder: Path) -> None:
    name = shard_of(folder, 0)
    (folder / name).rename(folder / "shards/000099.tar")
    found = problems(folder)
    assert any(f"{name} is missing" in problem for problem in found)
    assert any("000099.tar" in problem for problem in found)


def test_nothing_is_visible_before_the_manifest(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "dataset")
    with pytest.raises(ZeroDivisionError), DatasetWriter(storage) as writer:
        writer.add(make_sample(1))
        raise ZeroDivisionError
    with pytest.raises(RunError, match=r"no finished dataset"):
        open_dataset(tmp_path / "dataset")


def test_two_samples_of_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="occurs twice"):
        write(tmp_path / "dataset", [make_sample(1), make_sample(1)])
    assert not (tmp_path / "dataset/manifest.json").exists()


def test_a_dataset_is_never_overwritten(folder: Path) -> None:
    with pytest.raises(UsageError, match="already holds a dataset"):
        DatasetWriter(open_storage(folder))


def test_accounting_that_does_not_add_up_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    with DatasetWriter(open_storage(folder)) as writer:
        writer.add(make_sample(1))
        row = make_sample(1).row
        writer.account(
            [
                {
                    "source": row["source"],
                    "start_s": 1.5,
                    "end_s": 2.0,
                    "state": "filtered",
                    "stage": "x",
                    "reason": "y",
                }
            ]
        )
    assert any(row["source"] in problem and "1.5" in problem for problem in problems(folder))


def test_an_empty_dataset_is_a_dataset(tmp_path: Path) -> None:
    folder = write(tmp_path / "dataset", [])
    assert problems(folder) == []
    assert open_dataset(folder).index.num_rows == 0


def test_webdataset_reads_it(folder: Path) -> None:
    import webdataset

    urls = [str(path) for path in sorted(folder.glob("shards/*.tar"))]
    read = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert {item["__key__"]: item["mp4"] for item in read} == {
        sample.row["key"]: sample.clip for sample in map(make_sample, range(7))
    }
    assert {item["txt"] for item in read} == {"a red kite over the sea"}
    assert all(
        np.array_equal(item["video.npy"], make_sample(item["json"]["frames"] - 25).embeddings["video.npy"])
        for item in read
        if "video.npy" in item
    )


@thorough
def test_ray_reads_it(folder: Path, ray_local: str) -> None:
    import ray

    rows = ray.data.read_webdataset(str(folder / "shards"), file_extensions=["tar"], decoder=None).take_all()
    assert {row["__key__"]: row["mp4"] for row in rows} == {
        sample.row["key"]: sample.clip for sample in map(make_sample, range(7))
    }


def test_energon_sidecars_point_at_the_members(folder: Path) -> None:
    import sqlite3

    info = json.loads((folder / ".nv-meta/.info.json").read_text())
    assert info["shard_counts"] == {
        shard.path: shard.samples for shard in open_dataset(folder).manifest.shards
    }
    db = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    paths = list(info["shard_counts"])
    query = (
        "SELECT s.tar_file_id, s.sample_key, p.part_name, p.content_byte_offset, p.content_byte_size FROM samples s"
        " JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index"
    )
    clips = {sample.row["key"]: sample.clip for sample in map(make_sample, range(7))}
    read = {}
    for number, key, part, offset, size in db.execute(query):
        if part == "mp4":
            read[key] = (folder / paths[number]).read_bytes()[offset : offset + size]
    db.close()
    assert read == clips


def test_npy_members_hold_no_pickle(folder: Path) -> None:
    dataset = open_dataset(folder)
    rows = dataset.index.to_pylist()
    number = next(i for i, row in enumerate(rows) if any(m["suffix"] == "video.npy" for m in row["members"]))
    array = np.load(io.BytesIO(dataset.read_member(number, "video.npy")), allow_pickle=False)
    assert array.dtype == np.float16


def test_energon_opens_the_folder_as_it_is(folder: Path) -> None:
    expected = [(sample.row["key"], len(sample.clip)) for sample in map(make_sample, range(7))]
    assert energon_samples(folder, 7) == sorted(expected)
