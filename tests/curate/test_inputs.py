"""What a person types is found, and what cannot be found is said."""

import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.inputs import SourceRef, list_sources, shown
from loader.errors import UsageError
from loader.storage import StorageConfig, WebError, open_object, open_storage
from tests.httpserver import WebServer, web_server
from tests.s3server import s3_server

CONFIG = StorageConfig(max_attempts=2, backoff_base_s=0.001, allow_private=True)


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
        ("list.jsonl", '{"path": 3}\n', "entry 1 has no path"),
        ("list.csv", "path,caption\na.mp4,a boat, slowly\n", "line 2 has more cells"),
        ("list.csv", "path\n" + "x" * 200_000, "line 2 is no CSV"),
        ("list.txt", "a.mp4\n" + "x" * 2_000_000, "line 2 has more than"),
        ("list.txt", "a.mp4\n\xff".encode("latin-1"), "line 2 is no UTF-8"),
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


def listed(path: Path) -> dict[str, SourceRef]:
    return {source.uri.rsplit("/", 1)[-1]: source for source in list_sources([str(path)], CONFIG)}


def test_a_list_carries_licence_and_all_further_columns(folder: Path) -> None:
    rows = [
        {
            "path": "b.mp4",
            "License": "CC-BY 4.0",
            "source": "harbour",
            "year": 2024,
            "score": 0.5,
            "ok": True,
        },
        {"path": "a.MKV", "License": "", "source": None, "year": None, "score": float("nan"), "ok": False},
    ]
    said = {"licence": "CC-BY 4.0", "source": "harbour", "year": "2024", "score": "0.5", "ok": "true"}
    (folder / "l.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "l.parquet")
    (folder / "l.csv").write_text(
        "path,License,source,year,score,ok\nb.mp4,CC-BY 4.0,harbour,2024,0.5,true\n"
    )
    for name in ("l.jsonl", "l.parquet", "l.csv"):
        assert listed(folder / name)["b.mp4"].attributes == said
    assert listed(folder / "l.jsonl")["a.MKV"].attributes == {"ok": "false"}


def test_the_first_path_column_that_is_filled_is_the_path(folder: Path) -> None:
    (folder / "l.csv").write_text("Source,URL, Video ,Caption\nharbour,,b.mp4,A boat\na.MKV,,,\n")
    found = listed(folder / "l.csv")
    assert found["b.mp4"].attributes == {"Source": "harbour"}
    assert found["b.mp4"].caption == "A boat"
    assert found["a.MKV"].fault is None


def test_attributes_are_bounded(folder: Path) -> None:
    row = {
        "path": "b.mp4",
        "tags": ["a", "b"],
        "vector": list(range(5000)),
        "text": "x" * 10_000,
        "n" * 200: "y",
    }
    row |= {f"column{number:03}": "z" for number in range(100)}
    (folder / "l.jsonl").write_text(json.dumps(row) + "\n")
    found = listed(folder / "l.jsonl")["b.mp4"].attributes
    assert len(found) == 64
    assert found["tags"] == '["a", "b"]'
    assert len(found["text"]) == 4000
    assert "vector" not in found
    assert "n" * 200 not in found


def test_bytes_and_vectors_of_a_parquet_list_are_left_out(folder: Path) -> None:
    row = {"path": "b.mp4", "thumbnail": b"\xff\xd8", "vector": [0.5, 0.25], "tags": ["sea"], "at": {"x": 1}}
    pq.write_table(pa.Table.from_pylist([row]), folder / "l.parquet")
    assert listed(folder / "l.parquet")["b.mp4"].attributes == {"tags": '["sea"]'}


def test_half_a_character_in_a_list_becomes_a_question_mark(folder: Path) -> None:
    (folder / "l.jsonl").write_text('{"path": "b.mp4", "caption": "a \\ud800 boat", "k": "\\udfff"}\n')
    found = listed(folder / "l.jsonl")["b.mp4"]
    assert (found.caption, found.attributes) == ("a ? boat", {"k": "?"})


def test_a_kind_of_address_that_is_not_read_is_a_fault_of_that_source(folder: Path) -> None:
    (folder / "l.txt").write_text("ftp://host/x.mp4\nhttp://host:port/y.mp4\nb.mp4\n")
    faults = {name: source.fault for name, source in listed(folder / "l.txt").items()}
    assert "kind that is not read (ftp)" in str(faults["x.mp4"])
    assert "is no web address" in str(faults["y.mp4"])
    assert faults["b.mp4"] is None


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/raw/a b.mp4"] = b"video"
        server.files["/raw/deep/c.mp4"] = b"longer video"
        yield server


def test_a_web_address_is_a_source(web: WebServer) -> None:
    (found,) = list_sources([f"{web.url}/raw/a%20b.mp4"], CONFIG)
    assert (found.uri, found.size, found.fault, found.address) == (f"{web.url}/raw/a%20b.mp4", 5, None, "")
    assert found.version


def test_a_list_names_web_addresses_with_their_columns(web: WebServer, folder: Path) -> None:
    (folder / "l.csv").write_text(
        f"url,caption,licence\n{web.url}/raw/a%20b.mp4,A boat,CC0\n{web.url}/gone.mp4,,\nb.mp4,,\n"
    )
    found = listed(folder / "l.csv")
    assert found["a%20b.mp4"].caption == "A boat"
    assert found["a%20b.mp4"].attributes == {"licence": "CC0"}
    assert found["gone.mp4"].fault == "does not exist"
    assert found["b.mp4"].size == 5


def test_a_list_on_the_web_names_places_relative_to_itself(web: WebServer) -> None:
    web.files["/raw/list.txt"] = f"a%20b.mp4\ndeep/c.mp4\n{web.url}/raw/deep/c.mp4\n".encode()
    found = list_sources([f"{web.url}/raw/list.txt?token=secret"], CONFIG)
    assert [source.uri for source in found] == [f"{web.url}/raw/a%20b.mp4", f"{web.url}/raw/deep/c.mp4"]
    assert [source.size for source in found] == [5, 12]


def test_a_list_on_the_web_cannot_name_files_of_this_machine(web: WebServer, folder: Path) -> None:
    web.files["/l.txt"] = f"file://{folder}/b.mp4\n{folder}/b.mp4\n../../..{folder}/b.mp4\n".encode()
    found = list_sources([f"{web.url}/l.txt"], CONFIG)
    assert len(found) == 2
    assert all(source.fault for source in found)


def test_what_lets_one_in_is_kept_apart_from_what_is_shown(web: WebServer, folder: Path) -> None:
    secret = web.url.replace("http://", "http://me:hidden@") + "/raw/a%20b.mp4?id=7&Signature=hidden"
    (folder / "l.txt").write_text(secret + "\n")
    for given in (secret, str(folder / "l.txt")):
        (found,) = list_sources([given], CONFIG)
        assert found.uri == f"{web.url}/raw/a%20b.mp4?id=7"
        assert "hidden" not in repr(found)
        storage, name = open_object(found.location, CONFIG)
        assert storage.read(name) == b"video"
    assert shown(secret) == found.uri
    assert "hidden" not in shown(secret)
    assert shown("raw/what?.mp4") == "raw/what?.mp4"


def test_a_server_that_denies_access_fails_its_sources_of_a_list_only(web: WebServer, folder: Path) -> None:
    def deny(handler) -> bool:
        if handler.path.startswith("/private"):
            handler.answer(403, b"")
            return True
        return False

    web.script = deny
    (folder / "l.txt").write_text(f"{web.url}/private/x.mp4\n{web.url}/raw/a%20b.mp4\n")
    found = listed(folder / "l.txt")
    assert "access was denied" in str(found["x.mp4"].fault)
    assert found["a%20b.mp4"].fault is None
    with pytest.raises(WebError, match="access was denied"):
        list_sources([f"{web.url}/private/x.mp4"], CONFIG)


def test_a_web_address_that_does_not_exist_is_refused(web: WebServer) -> None:
    with pytest.raises(UsageError, match=r"gone\.mp4 does not exist"):
        list_sources([f"{web.url}/gone.mp4?token=hidden"], CONFIG)


def test_many_addresses_are_asked_for_side_by_side(web: WebServer, folder: Path) -> None:
    first, waiting = itertools.count(), threading.Barrier(8, timeout=30)

    def hold(handler) -> bool:
        """Answers none of the first eight before the eighth has been asked for."""
        if next(first) < 8:
            waiting.wait()
        return False

    web.script = hold
    web.files |= {f"/{number}.mp4": b"x" for number in range(64)}
    (folder / "l.txt").write_text("".join(f"{web.url}/{number}.mp4\n" for number in range(64)))
    assert [source.fault for source in list_sources([str(folder / "l.txt")], CONFIG)] == [None] * 64
    assert not waiting.broken
