"""What a person types is found, and what cannot be found is said."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.inputs import list_sources
from loader.errors import UsageError
from loader.storage import StorageConfig, open_storage
from tests.s3server import s3_server

CONFIG = StorageConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.MKV", "deep/c d.webm", "notes.txt", "a.json", ".hidden/x.mp4", "deep/readme.md"):
        path = tmp_path / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "raw"


def names(inputs: list[str]) -> list[str]:
    return [source.uri for source in list_sources(inputs, CONFIG)]


def test_a_folder_means_the_videos_below_it(folder: Path) -> None:
    assert names([str(folder)]) == [f"{folder}/{name}" for name in ("a.MKV", "b.mp4", "deep/c d.webm")]


def test_a_file_is_a_source_whatever_its_name(folder: Path) -> None:
    assert names([f"{folder}/deep/readme.md"]) == [f"{folder}/deep/readme.md"]


def test_one_source_named_twice_counts_once(folder: Path) -> None:
    assert len(names([str(folder), f"{folder}/b.mp4", str(folder)])) == 3


def test_the_order_of_inputs_does_not_matter(folder: Path) -> None:
    assert names([f"{folder}/b.mp4", f"{folder}/a.MKV"]) == names([f"{folder}/a.MKV", f"{folder}/b.mp4"])


def write_list(path: Path, entries: list[dict[str, str]]) -> Path:
    if path.suffix == ".txt":
        path.write_text("# a comment\n\n" + "".join(entry["path"] + "\n" for entry in entries))
    elif path.suffix == ".csv":
        path.write_text(
            "path,caption\n" + "".join(f'{e["path"]},"{e.get("caption", "")}"\n' for e in entries)
        )
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    else:
        pq.write_table(pa.Table.from_pylist(entries), path)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
def test_lists_name_sources_relative_to_themselves(folder: Path, suffix: str) -> None:
    entries = [{"path": "b.mp4", "caption": "a boat, slowly"}, {"path": f"{folder}/a.MKV", "caption": ""}]
    found = list_sources([str(write_list(folder / f"list{suffix}", entries))], CONFIG)
    assert [source.uri for source in found] == [f"{folder}/a.MKV", f"{folder}/b.mp4"]
    assert found[1].caption == (None if suffix == ".txt" else "a boat, slowly")
    assert found[0].caption is None


def test_a_listed_file_that_does_not_exist_is_kept_with_its_fault(folder: Path) -> None:
    path = write_list(folder / "list.txt", [{"path": "gone.mp4"}, {"path": "b.mp4"}])
    faults = {source.uri: source.fault for source in list_sources([str(path)], CONFIG)}
    assert faults == {f"{folder}/gone.mp4": "does not exist", f"{folder}/b.mp4": None}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("list.jsonl", "{nope", "line 1"),
        ("list.jsonl", "[1]\n", "line 1"),
        ("list.jsonl", '{"file": "a"}\n', "entry 1 has no path"),
        ("list.csv", "name\nx\n", "entry 1 has no path"),
        ("list.txt", b"\xff\xfe\x00", "UTF-8"),
        ("list.parquet", b"PAR1 but not", "parquet"),
        ("list.txt", "https://example.org/a.mp4\n", "web addresses"),
    ],
)
def test_a_wrong_list_is_refused_naming_the_place(
    folder: Path, name: str, content: str | bytes, words: str
) -> None:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=words) as caught:
        list_sources([str(path)], CONFIG)
    assert name in str(caught.value)


def test_an_input_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        list_sources([str(tmp_path / "nowhere")], CONFIG)


def test_a_folder_without_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="no video found"):
        list_sources([str(tmp_path)], CONFIG)


@pytest.mark.skipif(os.name != "posix", reason="names that are no UTF-8 exist on POSIX only")
def test_a_name_that_is_no_utf8_is_a_fault_of_that_source_only(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.mp4")).write_bytes(b"x")
    faults = {source.uri: source.fault for source in list_sources([str(folder)], CONFIG)}
    assert "UTF-8" in str(faults[f"{folder}/bad\\xff.mp4"])
    assert sum(fault is None for fault in faults.values()) == 3


def test_an_s3_prefix_means_the_videos_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with s3_server() as endpoint:
        config = StorageConfig(endpoint_url=endpoint, region="us-east-1")
        import boto3

        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="raw")
        storage = open_storage("s3://raw/day one", config)
        for name in ("a.mp4", "deep/b #1.mov", "notes.md"):
            storage.write(name, b"x")
        found = [source.uri for source in list_sources(["s3://raw/day one/"], config)]
    assert found == ["s3://raw/day one/a.mp4", "s3://raw/day one/deep/b #1.mov"]
