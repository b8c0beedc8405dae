"""MDS datasets of Mosaic Streaming, read in place; other formats are refused with what to do."""

import hashlib
import io
import json
import shlex
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

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


def write_mds(folder: Path, columns: dict[str, str], *samples: list[bytes]) -> Path:
    """Write one shard of columns without fixed sizes, and its index."""
    names, encodings = list(columns), list(columns.values())
    stated = {"column_names": names, "column_encodings": encodings, "column_sizes": [None] * len(names)}
    head = json.dumps(stated).encode()
    regions = [
        b"".join(struct.pack("<I", len(value)) for value in sample) + b"".join(sample) for sample in samples
    ]
    offsets = [4 * (len(samples) + 2) + len(head)]
    for region in regions:
        offsets.append(offsets[-1] + len(region))
    table = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets)
    folder.mkdir(parents=True)
    data = table + head + b"".join(regions)
    (folder / "shard.00000.mds").write_bytes(data)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    entry = {"format": "mds", "version": 2, "raw_data": raw, "samples": len(samples), **stated}
    (folder / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))
    return folder


def png(shade: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (16, 16), shade).save(content, "PNG")
    return content.getvalue()


def test_a_first_sample_without_media_hides_no_column(tmp_path: Path) -> None:
    columns = {"picture": "bytes", "caption": "str"}
    broken = [[b"", b"a"], [b"no picture", b"b"], [png(3), b"c"], [png(4), b"d"]]
    folder = write_mds(tmp_path / "mds", columns, *broken)
    index_tars(str(folder), workers=1)
    assert [row["caption"] for row in to_rows(open_dataset(folder).index)] == ["c", "d"]
    assert len([row for row in to_rows(open_dataset(folder).accounting) if row["state"] == "failed"]) == 2


def test_what_is_not_read_of_a_sample_is_said(tmp_path: Path) -> None:
    columns = {
        "prompt": "str",
        "text": "str",
        "score": "str_float",
        "box": "ndarray",
        "x": "pkl",
        "i": "bytes",
    }
    sample = [b"a boat", b"a ship", b"nan", b"???", b"???", png(1)]
    folder = write_mds(tmp_path / "mds", columns, sample, sample)
    notes = index_tars(str(folder), workers=1).notes
    assert "columns of MDS that are not read: prompt (str), box (ndarray), x (pkl)" in notes
    assert any(
        note.startswith("2 fields of columns left out (no finite number), the first: score") for note in notes
    )
    assert not any(".txt" in note or ".json" in note for note in notes)


@pytest.mark.parametrize("more", [{}, {"meta": "json"}])
def test_a_list_of_captions_is_one_of_captions(tmp_path: Path, more: dict[str, str]) -> None:
    values = [b'["a boat", "a ship"]', png(1), *(b'{"score": 1.5}' for _ in more)]
    folder = write_mds(tmp_path / "mds", {"captions": "json", "image": "bytes", **more}, values)
    notes = index_tars(str(folder), workers=1).notes
    assert not any("left out" in note or "no caption" in note for note in notes)
    assert to_rows(open_dataset(folder).index)[0]["caption"] == "a boat"


def test_samples_without_a_caption_are_counted_in_words_of_columns(tmp_path: Path) -> None:
    folder = write_mds(
        tmp_path / "mds", {"image": "bytes", "caption": "bytes"}, [png(1), b"a"], [png(2), b"b"]
    )
    notes = index_tars(str(folder), workers=1).notes
    assert any(note.startswith("2 samples have no caption: training goes without") for note in notes)
    assert "columns of MDS that are not read: caption (bytes)" in notes


def test_a_tar_beside_mds_leaves_neither_out_in_silence(folder: Path) -> None:
    with tarfile.open(folder / "more.tar", "w") as tar:
        for name, content in (("a.png", png(1)), ("a.txt", b"a boat")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(
        UsageError, match=r"holds tars and shards of MDS .* --shards '\*.tar' or --shards '\*.mds'"
    ):
        index_tars(str(folder), workers=1)
    index_tars(str(folder), out=str(folder.parent / "of tars"), shards="*.tar", workers=1)
    assert len(to_rows(open_dataset(folder.parent / "of tars").index)) == 1
    index_tars(str(folder), shards="*.mds", workers=1)
    assert len(to_rows(open_dataset(folder).index)) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "it has no list of at most 1,000,000 shards"),
        ('{"version": 2}', "it has no list of at most"),
        ('{"version": 3, "shards": []}', "its version is not 2"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_an_index_that_is_none_is_told_in_words(folder: Path, text: str, message: str) -> None:
    (folder / "index.json").write_text(text)
    with pytest.raises(UsageError, match=rf"index.json is no index of MDS shards: {message}"):
        index_tars(str(folder), workers=1)


def test_no_name_of_a_stranger_stands_bare_in_a_command(tmp_path: Path) -> None:
    (tmp_path / "a;reboot").mkdir()
    (tmp_path / "a;reboot" / "metadata.csv").touch()
    with pytest.raises(UsageError) as refused:
        index_tars(str(tmp_path), workers=1)
    assert shlex.split(str(refused.value).split("`")[1])[2] == f"{tmp_path}/a;reboot/metadata.csv"
