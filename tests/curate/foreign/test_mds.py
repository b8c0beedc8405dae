"""MDS datasets of Mosaic Streaming, read in place; other formats are refused with what to do."""

import hashlib
import json
import shlex
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reelweave.curate.foreign.run import index_tars
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.checks.verify import verify
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream

MOSAIC = Path(__file__).parent / "mosaic_files"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MOSAIC, tmp_path / "mds"))


def read_by_mosaic(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "read_by_mosaic.json").read_text())["samples"]


def change_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first shard's entry of the index."""
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"][0])
    (folder / "index.json").write_text(json.dumps(index))


def test_samples_have_the_bytes_and_values_that_mosaic_reads(folder: Path) -> None:
    indexed = index_tars(str(folder), workers=1)
    assert indexed.notes == (
        "fields kept (index.parquet): scores aesthetic, label; attributes camera, licence",
    )
    dataset = open_dataset(folder)
    rows, read = to_rows(dataset.index), read_by_mosaic(folder)
    assert [row["caption"] for row in rows] == [sample["caption"] for sample in read]
    assert [row["scores"]["aesthetic"] for row in rows] == [sample["aesthetic"] for sample in read]
    assert [row["attributes"]["licence"] for row in rows] == ["cc-by", "cc0", "cc-by", "cc0", "cc-by"]
    assert [row["attributes"]["camera"] for row in rows] == [f"no {number}" for number in range(5)]
    for row, sample in zip(rows, read, strict=True):
        [video] = [member for member in row["members"] if member["suffix"].endswith("mp4")]
        shard = (folder / row["shard"]).read_bytes()
        content = shard[video["offset"] : video["offset"] + video["size"]]
        assert hashlib.sha256(content).hexdigest() == sample["video"]
    assert verify(open_storage(folder)).problems == []
    # Nothing but tables of ours came beside Mosaic's own files.
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in MOSAIC.iterdir())
    assert not (folder / ".nv-meta").exists()


def test_they_are_streamed_and_an_index_elsewhere_reads_them_in_place(folder: Path, tmp_path: Path) -> None:
    index_tars(str(folder), out=str(tmp_path / "out"), workers=1)
    buckets = BucketConfig(
        frames=(5,),
        sizes=((64, 64),),
        compression={"frames": 4, "height": 16, "width": 16, "causal": True},
        max_text_tokens=99,
        memory_tokens=2000,
        max_crop=0.6,
    )
    stream = VideoStream(open_dataset(tmp_path / "out"), StreamConfig(buckets=buckets, epochs=1, workers=1))
    captions = [caption for batch in stream for caption in batch.captions]
    assert sorted(captions) == sorted(sample["caption"] for sample in read_by_mosaic(folder))
    assert all(not path.name.startswith("manifest") for path in folder.iterdir())


def test_a_second_call_reads_what_is_new(folder: Path) -> None:
    assert index_tars(str(folder), workers=1).tars_read == 3
    assert index_tars(str(folder), workers=1).tars_read == 0


def test_damage_is_counted_and_the_rest_is_kept(folder: Path) -> None:
    path = folder / "shard.00002.mds"
    shard = bytearray(path.read_bytes())
    [begin] = struct.unpack_from("<I", shard, 4)
    # The first column of the first sample claims more bytes than the sample has.
    struct.pack_into("<I", shard, begin, 1 << 30)
    path.write_bytes(shard)
    indexed = index_tars(str(folder), workers=1)
    assert any("another SHA-256 than index.json" in note for note in indexed.notes)
    reasons = [row["reason"] for row in to_rows(open_dataset(folder).accounting) if row["state"] == "failed"]
    assert any(reason.startswith("the columns of the sample fill") for reason in reasons)
    assert len(to_rows(open_dataset(folder).index)) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.update(format="json"), "has format json, version 2"),
        (lambda entry: entry.update(version=3), "has format mds, version 3"),
        (lambda entry: entry["raw_data"].update(basename="../shard.00000.mds"), "outside of its folder"),
        (lambda entry: entry["raw_data"].update(basename="lost.mds"), "names lost.mds, which is missing"),
        (lambda entry: entry["raw_data"].update(bytes=7), "has 8834 bytes, and .* says 7"),
        (lambda entry: entry.update(column_names=["clip", *entry["column_names"][1:]]), "has other columns"),
        (lambda entry: entry.update(samples="many"), "is no index of MDS shards: samples"),
        (
            lambda entry: entry.update(
                compression="zstd:3",
                zip_data={"basename": "a.mds.zstd", "bytes": 9},
                raw_data=entry["raw_data"] | {"basename": "a.mds"},
            ),
            r"shards are compressed \(zstd:3\).*zstd -d",
        ),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    change_index(folder, change)
    with pytest.raises((UsageError, RunError), match=message):
        index_tars(str(folder), workers=1)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in MOSAIC.iterdir())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["shard.00000.mds"], "merge it"),
        (["data/x.lance", "_versions/1.manifest"], "it is a Lance dataset"),
        (["train-00000.parquet"], "it holds Parquet"),
        (["metadata.csv", "a.mp4"], "files beside metadata.csv: `reelweave curate"),
        (["sub/a.mp4"], "its videos are files: `reelweave curate"),
    ],
)
def test_other_formats_are_refused_with_what_to_do(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=message):
        index_tars(str(tmp_path), workers=1)


def test_numbers_that_are_none_leave_out_their_column_alone(folder: Path) -> None:
    path = folder / "shard.00002.mds"
    shard = bytearray(path.read_bytes())
    [begin] = struct.unpack_from("<I", shard, 4)
    struct.pack_into("<d", shard, begin + 4 * 4, float("nan"))  # aesthetic, behind four sizes
    path.write_bytes(shard)
    change = json.loads((folder / "index.json").read_text())
    change["shards"][2]["raw_data"]["hashes"]["sha256"] = hashlib.sha256(shard).hexdigest()
    (folder / "index.json").write_text(json.dumps(change))
    index_tars(str(folder), workers=1)
    row = next(row for row in to_rows(open_dataset(folder).index) if row["shard"] == path.name)
    assert row["scores"].get("aesthetic") is None
    assert row["attributes"]["licence"]
    assert row["scores"]["label"] is not None


def test_shards_that_the_index_does_not_name_are_counted(folder: Path) -> None:
    shutil.copy(folder / "shard.00000.mds", folder / "old.mds")
    notes = index_tars(str(folder), workers=1).notes
    assert "1 shard of MDS is not in index.json: left out, the first: old.mds" in notes
    assert len(to_rows(open_dataset(folder).index)) == 5


def test_no_name_of_a_stranger_stands_bare_in_a_command(tmp_path: Path) -> None:
    (tmp_path / "a;reboot").mkdir()
    (tmp_path / "a;reboot" / "metadata.csv").touch()
    with pytest.raises(UsageError) as refused:
        index_tars(str(tmp_path), workers=1)
    assert shlex.split(str(refused.value).split("`")[1])[2] == f"{tmp_path}/a;reboot/metadata.csv"
