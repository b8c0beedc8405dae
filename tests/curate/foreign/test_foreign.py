"""Tars that somebody else wrote become a dataset, and stay as they are."""

import hashlib
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset
from reelweave.loader.dataset.manifest import Foreign, Manifest
from reelweave.loader.dataset.reader import shard_storage
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.dataset.tars.tar_scan import TarScan
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.curate.foreign.foreign_sets import clips, digests, failed, index, mixed_set, problems
from tests.foreign_tars import by_tarfile, by_webdataset, video
from tests.loader.dataset.test_dataset import write as write_dataset
from tests.media import write_video
from tests.thorough import beyond, thorough


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


@pytest.fixture
def mixed(tmp_path: Path, raw: Path) -> Path:
    return mixed_set(tmp_path / "set", raw)


def test_every_sample_is_in_the_index_or_in_the_accounting(mixed: Path) -> None:
    before = digests(mixed)
    done = index(mixed)
    assert {path: state for path, state in digests(mixed).items() if path in before} == before
    dataset = open_dataset(mixed)
    rows = {row["key"]: row for row in to_rows(dataset.index)}
    folder = "long folder/" * 14
    assert sorted(rows) == sorted(
        [
            "clip0000",
            "clip0001",
            "clip0002",
            "x/both",
            "x/webm",
            *(f"{folder}p{number}" for number in range(3)),
        ]
    )
    assert rows["clip0001"]["shard"] == "a/000.tar"
    assert (rows["clip0001"]["frames"], rows["clip0001"]["fps"]) == (12, 25.0)
    assert (rows["clip0001"]["caption"], rows["clip0001"]["text_tokens"]) == ("two words 1", 3)
    assert (rows["x/webm"]["caption"], rows["x/webm"]["caption_source"]) == ("spoken", "member:json")
    assert (rows["x/both"]["frames"], rows["x/both"]["caption_source"]) == (7, "none")
    assert rows[f"{folder}p2"]["caption"] == "picture 2"
    assert rows[f"{folder}p2"]["frames"] == 1
    reasons = failed(mixed)
    assert {source.split(" at byte ")[0] for source in reasons} == {
        f"shards/other.tar/{key}" for key in ("x/broken", "x/text")
    }
    assert done.manifest.totals.accounting == {"kept": 8, "filtered": 0, "duplicate": 0, "failed": 2}
    assert problems(mixed) == []
    for number, row in enumerate(to_rows(dataset.index)):
        assert hashlib.sha256(dataset.read_media(number)).hexdigest() == row["sha256"]


def test_damage_is_found_and_a_damaged_sample_named(mixed: Path) -> None:
    index(mixed)
    dataset = open_dataset(mixed)
    row = dataset.row(dataset.row_numbers["x/webm"])
    path = mixed / row["shard"]
    whole = path.read_bytes()
    for place in (row["offset"] + 3, row["offset"] + row["size"] // 2, row["offset"] - 100, len(whole) - 5):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found = problems(mixed)
        assert len(found) == 1
        assert row["shard"] in found[0]
        assert ("x/webm" in found[0]) == (row["offset"] <= place < row["offset"] + row["size"])


def test_an_unchanged_folder_is_not_read_again(mixed: Path) -> None:
    first = index(mixed)
    before = digests(mixed)
    again = index(mixed)
    assert (first.tars_read, again.tars_read) == (3, 0)
    assert again.manifest == first.manifest
    assert digests(mixed) == before


def test_new_and_changed_tars_alone_are_read_and_make_a_revision(mixed: Path, raw: Path) -> None:
    index(mixed)
    by_webdataset(mixed / "a/000.tar", clips(raw, 0, 2))
    by_webdataset(mixed / "a/001.tar", clips(raw, 20, 2))
    done = index(mixed)
    assert (done.tars_read, done.manifest.revision) == (2, 1)
    keys = open_dataset(mixed).index.column("key").to_pylist()
    assert "clip0002" not in keys
    assert {"clip0020", "clip0021"} < set(keys)
    assert problems(mixed) == []
    assert (mixed / "index.parquet").read_bytes() == (mixed / "index.000001.parquet").read_bytes()
    assert {"index.json", "scores.csv", "shards/readme.md", "shards/other.tar"} < digests(mixed).keys()
    (mixed / "a/001.tar").unlink()
    assert index(mixed).tars_read == 0
    assert problems(mixed) == []


def test_a_cut_tar_is_named_and_its_readable_samples_are_kept(tmp_path: Path, raw: Path) -> None:
    folder = tmp_path / "set"
    path = by_webdataset(folder / "cut.tar", clips(raw, 0, 4))
    by_webdataset(folder / "whole.tar", clips(raw, 10, 1))
    with path.open("rb") as file:
        third = list(TarScan(file))[2]
    path.write_bytes(path.read_bytes()[: third.offset + third.size // 2])
    done = index(folder)
    assert [note.split(" ")[0] for note in done.notes] == [str(path)]
    keys = open_dataset(folder).index.column("key").to_pylist()
    assert keys == ["clip0000", "clip0001", "clip0010"]
    assert sorted(source.split(" at ")[0] for source in failed(folder)) == ["cut.tar", "cut.tar/clip0002"]
    assert problems(folder) == []


@thorough
def test_tars_of_our_own_writer_give_the_same_places(tmp_path: Path) -> None:
    from tests.loader.stream_clips import make_sample

    made = [
        make_sample(f"key{number}", video(tmp_path / "raw", number, 9), 9, (96, 64)) for number in range(5)
    ]
    ours = write_dataset(tmp_path / "ours", made)
    folder = tmp_path / "theirs"
    (folder / "shards").mkdir(parents=True)
    for path in ours.glob("shards/*.tar"):
        (folder / "shards" / path.name).write_bytes(path.read_bytes())
    index(folder)
    assert problems(folder) == []
    columns = ["key", "shard", "offset", "size", "members", "frames", "height", "width", "sha256", "caption"]
    assert open_dataset(folder).index.select(columns).equals(open_dataset(ours).index.select(columns))
    for path in ours.glob("shards/*.idx"):
        assert (folder / "shards" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", beyond(1, ["sub/x.tgz", "x.tar.gz"]))
def test_packed_tars_are_refused(mixed: Path, name: str) -> None:
    (mixed / name).parent.mkdir(exist_ok=True)
    (mixed / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match="packed"):
        index(mixed)
    assert index(mixed, shards="*.tar").tars_read == 3


def test_a_glob_chooses(mixed: Path) -> None:
    assert len(index(mixed, shards="a/*").manifest.shards) == 1
    with pytest.raises(UsageError, match="nothing"):
        index(mixed, shards="nothing*")


def test_nothing_usable_is_a_failure(tmp_path: Path) -> None:
    by_tarfile(tmp_path / "set/a.tar", [("a", {"txt": b"x"})])
    with pytest.raises(RunError, match=r"no video and no picture"):
        index(tmp_path / "set")
    assert not (tmp_path / "set/manifest.json").exists()


def test_files_of_others_are_not_replaced(mixed: Path) -> None:
    (mixed / "index.parquet").write_bytes(b"theirs")
    with pytest.raises(UsageError, match=r"index\.parquet"):
        index(mixed)
    (mixed / "index.parquet").unlink()
    (mixed / ".nv-meta").mkdir()
    (mixed / ".nv-meta/split.yaml").write_text("theirs")
    (mixed / "a/000.tar.idx").write_bytes(b"theirs")
    for _ in range(2):
        done = index(mixed)
        assert "a/000.tar.idx" in done.notes[-1]
    assert sorted(path.name for path in (mixed / ".nv-meta").iterdir()) == ["split.yaml"]
    assert (mixed / "a/000.tar.idx").read_bytes() == b"theirs"
    assert problems(mixed) == []


def test_commands_that_write_tars_leave_them_alone(mixed: Path, raw: Path) -> None:
    write_video(raw / "source.mp4", (60,), size=(320, 192))
    config = CurateConfig.model_validate({"run": {"runner": "sequential"}})
    before = digests(mixed)
    with pytest.raises(UsageError, match="no curation wrote"):
        curate([str(raw / "source.mp4")], str(mixed), config)
    assert digests(mixed) == before
    index(mixed)
    before = digests(mixed)
    with pytest.raises(UsageError, match="no curation wrote"):
        curate([str(raw / "source.mp4")], str(mixed), config, update=True)
    assert digests(mixed) == before


def _of(**named: str) -> Removal:
    return Removal(date="2025-01-01", reason="asked", samples=0, **named)


def test_a_revision_leaves_samples_out_and_the_tars_as_they_are(mixed: Path) -> None:
    before = digests(mixed)
    index(mixed)
    held = open_dataset(mixed).column("key").to_pylist()
    gone = held[1:4]
    done = remove(open_storage(mixed), *(_of(key=key) for key in [*gone, "nobody"]))
    assert (done.samples, done.shards_rewritten, done.foreign, done.unknown) == (3, 0, True, ("nobody",))
    assert {path: state for path, state in digests(mixed).items() if path in before} == before
    dataset = open_dataset(mixed)
    assert dataset.column("key").to_pylist() == [key for key in held if key not in gone]
    assert dataset.manifest.revision == 1
    rows = {row["key"]: row for row in to_rows(dataset.accounting) if row["key"] in gone}
    assert {(row["state"], row["stage"], row["reason"]) for row in rows.values()} == {
        ("filtered", "removal", "taken down on 2025-01-01: asked")
    }
    assert len(rows) == 3
    assert problems(mixed) == []

    again = remove(open_storage(mixed), *(_of(key=key) for key in gone))
    assert (again.samples, again.manifest.revision) == (0, 1)
    by_source = remove(open_storage(mixed), _of(source=dataset.row(0)["source"]))
    assert (by_source.samples, by_source.manifest.removals[-1].samples) == (1, 1)
    index(mixed)  # reads nothing anew, and leaves them out
    left = open_dataset(mixed).column("key").to_pylist()
    assert left == [key for key in held if key not in gone][1:]
    with pytest.raises(UsageError, match="knows no key nobody"):
        remove(open_storage(mixed), _of(key="nobody"))


def test_the_index_may_lie_elsewhere(mixed: Path, tmp_path: Path) -> None:
    before = digests(mixed)
    out = tmp_path / "index"
    index(mixed, out=str(out))
    assert digests(mixed) == before
    dataset = open_dataset(out)
    row = dataset.row(0)
    assert hashlib.sha256(dataset.read_media(0)).hexdigest() == row["sha256"]
    assert problems(out) == []
    assert index(mixed, out=str(out)).tars_read == 0


@pytest.mark.parametrize(
    ("place", "tars", "may"),
    [
        ("/data/index", "/films/tars", True),
        ("/data/index", "s3://films/tars", True),
        ("s3://films/index", "s3://films/tars", True),
        ("s3://mine/index", "s3://films/tars", False),
        ("s3://mine/index", "/films/tars", False),
        ("https://host.example/index", "https://host.example/tars", True),
        ("https://host.example/index", "https://inner.example/tars", False),
        ("https://host.example/index", "s3://films/tars", False),
        ("https://host.example/index", "/films/tars", False),
    ],
)
def test_a_dataset_names_tars_where_it_lies_itself(place: str, tars: str, may: bool) -> None:
    manifest = Manifest.model_construct(foreign=Foreign(uri=tars))
    storage, prefixes = open_storage(place), ("/films", "s3://films", "https://inner.example")
    if may:
        assert shard_storage(storage, manifest).root == tars
    else:
        with pytest.raises(RunError, match=r"has its tars elsewhere.*storage\.allowed_prefixes"):
            shard_storage(storage, manifest)
        config = StorageConfig(allowed_prefixes=prefixes)
        assert shard_storage(storage, manifest, config).root == tars


def test_an_index_that_nobody_could_follow_is_refused_before_tars_are_read(mixed: Path) -> None:
    before = digests(mixed)
    with pytest.raises(UsageError, match=r"storage\.allowed_prefixes"):
        index(mixed, out="s3://mine/index", config=StorageConfig(endpoint_url="http://127.0.0.1:9"))
    assert digests(mixed) == before
