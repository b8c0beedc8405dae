"""What a person types is found, and what cannot be found is said."""

import inspect
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.curate.sources.inputs import SourceRef, list_sources, redact_input
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, WebError, open_object, open_storage
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


def test_files_that_a_folder_leaves_out_are_told(folder: Path) -> None:
    for name in ("b.PNG", "c.png", "noextension"):
        (folder / name).write_bytes(b"x")
    notes: list[str] = []
    list_sources([str(folder)], CONFIG, notes.append)
    assert "4 files" in notes[-1]
    assert ".png 2, none 1, .md 1" in notes[-1]


def test_a_file_that_another_of_the_same_size_and_time_replaces_has_another_version(folder: Path) -> None:
    path, other = folder / "b.mp4", folder / "other"
    (before,) = list_sources([str(path)], CONFIG)
    status = path.stat()
    path.chmod(0o600)
    (same,) = list_sources([str(path)], CONFIG)
    assert same.version == before.version  # a change time would tell this, too, and cut every film anew
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    (after,) = list_sources([str(path)], CONFIG)
    assert after.size == before.size
    assert after.version != before.version


def test_sidecars_of_no_video_are_told_unless_they_are_inputs(folder: Path) -> None:
    for name in ("b.txt", "deep/b.json", "deep/c d.json", "deep/a.txt", "captions.csv"):
        (folder / name).write_text("[]")
    notes: list[str] = []
    list_sources([str(folder)], CONFIG, notes.append)
    unpaired = f"3 files that end in .txt or .json beside no video of the same name ({folder}/deep/a.txt,"
    assert any(unpaired in note for note in notes)
    (folder / "notes.txt").write_text("b.mp4")
    (folder / "captions.csv").write_text("path,caption\nb.mp4,A boat.")
    notes.clear()
    lists = [str(folder / name) for name in ("notes.txt", "captions.csv")]
    list_sources([f"{folder}/.", *lists], CONFIG, notes.append)
    assert any("2 files that end in .txt" in note for note in notes)
    assert not any("may be a list" in note for note in notes)


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


def test_a_list_as_other_programs_write_it(folder: Path) -> None:
    (folder / "pandas.csv").write_text(",path,caption,\n0,b.mp4,a boat,\n")
    (folder / "many.jsonl").write_text('{"path": "b.mp4", "caption": ["", "a boat", "a kite"]}\n')
    captions = pa.array([["a boat", "a kite"]], pa.large_list(pa.large_string()))
    pq.write_table(pa.table({"path": ["b.mp4"], "caption": captions}), folder / "polars.parquet")
    for name in ("pandas.csv", "many.jsonl", "polars.parquet"):
        (found,) = list_sources([str(folder / name)], CONFIG)
        assert (found.uri, found.caption, found.attributes) == (f"{folder}/b.mp4", "a boat", {}), name


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
        ("list.txt", "#\n" + "x" * 2_000_000, "line 2 has more than"),
        ("list.txt", "#\n\xff".encode("latin-1"), "line 2 is no UTF-8"),
        ("list.jsonl", "[" * 100_000, "line 1 is no JSON"),
        ("list.csv", "", "names no columns"),
        ("list.txt", "# nothing yet\n", "names no source"),
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
def test_a_file_whose_name_is_no_utf8_is_read_and_named_by_its_uri(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.mp4")).write_bytes(b"whole")
    (folder / "bad\\xff.mp4").write_bytes(b"other")
    found = {source.uri: source for source in list_sources([str(folder)], CONFIG)}
    source = found[f"file://{folder}/bad%FF.mp4"]
    assert (source.size, source.fault) == (5, None)
    storage, name = open_object(source.location, CONFIG)
    assert storage.read(name) == b"whole"
    assert len(found) == 5


def wrong_entries(folder: Path) -> dict[str, bytes]:
    """A list of each format whose second entry, counted from 1, is wrong, and the others name b.mp4 and a.MKV."""
    good = {"path": "b.mp4"}, {"path": "a.MKV"}
    lists = {}
    for number, wrong in enumerate((b"\xff", b"x" * (2 << 20), b"x" * (1 << 20), b"\0", b"x" * 300)):
        lists[f"{number}.txt"] = b"b.mp4\n" + wrong + b"\na.MKV\n"
        lists[f"{number}.csv"] = b"path\nb.mp4\n" + wrong + b"\na.MKV\n"
    objects = (
        b"{nope",
        b"[" * 100_000,
        b"7",
        b"null",
        b"{}",
        b'{"path": 3}',
        b'{"path": [1]}',
        b'{"path": ""}',
    )
    deep = b'{"path": ' + b"[" * 900 + b"]" * 900 + b"}"
    for number, wrong in enumerate(
        (*objects, deep, b'{"path": ' + b"9" * 5000 + b"}", b'{"path": "a\\u0000b"}')
    ):
        lists[f"{number}.jsonl"] = b"\n".join(
            (json.dumps(good[0]).encode(), wrong, json.dumps(good[1]).encode())
        )
    lists["cells.csv"] = b"path\nb.mp4\nx,y,z\na.MKV\n"
    lists["quote.csv"] = b'path\nb.mp4\n"' + b"x" * 200_000 + b'"\na.MKV\n'
    for number, wrong_path in enumerate((None, "", "x" * 100_000, "s" * 300 + ".mp4")):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([good[0], {"path": wrong_path}, good[1]]), sink)
        lists[f"{number}.parquet"] = sink.getvalue()
    sink = io.BytesIO()
    broken = pa.array([b"b.mp4", b"\xff.mp4", b"a.MKV"]).view(pa.string())
    pq.write_table(pa.table({"path": broken}), sink)
    lists["utf8.parquet"] = sink.getvalue()
    return lists


def test_a_wrong_entry_of_a_list_is_a_fault_of_its_own(folder: Path) -> None:
    for name, content in wrong_entries(folder).items():
        path = folder / name
        path.write_bytes(content)
        found = list_sources([str(path)], CONFIG)
        good = [source.uri for source in found if source.fault is None]
        assert good == [f"{folder}/a.MKV", f"{folder}/b.mp4"], name
        (wrong,) = (source for source in found if source.fault)
        assert len(wrong.uri) < 1 << 17, name
        assert wrong.uri.startswith(f"{folder}/"), name


WRONG_ADDRESSES = (
    *(
        "http://[::1",
        "http://u:pw]x@[/x",
        "http://u:pw@host:port/y.mp4",
        "ftp://u:pw@host/x.mp4",
        "s3://nobucket",
    ),
    *(
        "s3://KEY:pw@bucket/x.mp4",
        "s3://b/../../x.mp4",
        "file://host/x.mp4",
        "file:///",
        "https://",
        "http:///x.mp4",
    ),
    *(
        "http://u:pw@ho\u2100st/x",
        "http://u:pw#w@h/x",
        "//[x",
        "x" * 300,
        "../" * 3000 + "x",
        ".",
        "..",
        "a/..",
        "-",
    ),
)


@pytest.mark.parametrize("address", WRONG_ADDRESSES)
def test_a_wrong_address_of_a_list_costs_the_others_nothing(
    folder: Path, web: WebServer, address: str
) -> None:
    (folder / "l.txt").write_text(f"{address}\nb.mp4\n")
    web.files["/l.txt"] = f"{address}\nraw/a%20b.mp4\n".encode()
    for text in (str(folder / "l.txt"), f"{web.url}/l.txt"):
        found = list_sources([text], CONFIG)
        assert [source.fault is None for source in found].count(True) == 1
        (wrong,) = (source for source in found if source.fault)
        assert "pw" not in wrong.uri + str(wrong.fault)


def test_a_bucket_that_does_not_exist_fails_its_entries_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with s3_server() as endpoint:
        config = StorageConfig(endpoint_url=endpoint, region="us-east-1")
        import boto3

        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="raw")
        for key in ("a//b.mp4", "/c.mp4", "d\\e.mp4", "..", "f\x01.mp4", ".hidden.mp4"):
            client.put_object(Bucket="raw", Key=key, Body=b"whole")
        (folder / "l.txt").write_text("s3://nobucket/x.mp4\ns3://raw/a//b.mp4\nb.mp4\n")
        faults = {source.uri: source.fault for source in list_sources([str(folder / "l.txt")], config)}
        assert "there is no bucket nobucket" in str(faults.pop("s3://nobucket/x.mp4"))
        assert set(faults.values()) == {None}
        storage, name = open_object("s3://raw/a//b.mp4", config)
        assert storage.read(name) == b"whole"
        found = [source.uri for source in list_sources(["s3://raw"], config)]
    assert {"s3://raw/a//b.mp4", "s3://raw//c.mp4", "s3://raw/d\\e.mp4"} <= set(found)


def test_what_is_no_file_is_a_fault_where_a_film_is_meant(folder: Path) -> None:
    os.mkfifo(folder / "pipe.mp4")
    os.mkfifo(folder / "pipe")
    (folder / "dead.mp4").symlink_to(folder / "nowhere")
    (folder / "loop.mp4").symlink_to(folder / "loop.mp4")
    (folder / "season").symlink_to(folder / "gone")
    (folder / "dead.txt").symlink_to(folder / "gone")
    (folder / "null.mp4").symlink_to("/dev/null")
    (folder / "up").symlink_to(folder)
    (folder / "other name").symlink_to(folder / "deep")
    (folder / "\\x.mp4").write_bytes(b"x")
    notes: list[str] = []
    sources = list_sources([str(folder)], CONFIG, notes.append)
    faults = {source.uri.removeprefix(f"{folder}/"): source.fault for source in sources if source.fault}
    assert faults.pop("\\x.mp4")
    assert faults == {
        "pipe.mp4": "is a pipe and no file",
        "dead.mp4": "is a link to nothing",
        "loop.mp4": "is a link that leads in a circle",
        "season": "is a link to nothing",
        "null.mp4": "is a device and no file",
    }
    assert [source.uri.removeprefix(f"{folder}/") for source in sources if not source.fault] == [
        "a.MKV",
        "b.mp4",
        "deep/c d.webm",
    ]
    assert any(": 1 hidden file (" in note for note in notes)


def test_films_that_have_a_hidden_name_and_an_open_one_are_found_by_the_open_one(tmp_path: Path) -> None:
    (tmp_path / ".store").mkdir()
    (tmp_path / ".store/a.mp4").write_bytes(b"x")
    (tmp_path / "films").symlink_to(tmp_path / ".store")
    notes: list[str] = []
    (source,) = list_sources([str(tmp_path)], CONFIG, notes.append)
    assert (source.uri, notes) == (f"{tmp_path}/films/a.mp4", [])


def put_below(folder: Path, name: str, depth: int) -> None:
    """A file "b.mp4" in ``depth`` folders of one name in each other; no path needs to be short enough for that."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open("b.mp4", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


@pytest.mark.parametrize(
    ("name", "depth", "fault"),
    [("d" * 200, 25, "has a name or a path longer than the system can open"), ("d", 400, None)],
)
def test_folders_in_folders_end_nothing(tmp_path: Path, name: str, depth: int, fault: str | None) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    put_below(tmp_path, name, depth)
    most = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        first, second = list_sources([str(tmp_path)], CONFIG)
        listed = [*open_storage(tmp_path).list()]
    finally:
        sys.setrecursionlimit(most)
    assert (first.uri, first.fault) == (f"{tmp_path}/a.mp4", None)
    assert (second.fault, len(listed)) == (fault, 1 if fault else 2)
    subprocess.run(["rm", "-r", tmp_path / name], check=True)


def test_a_folder_that_may_not_be_read_is_a_fault(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # one that others than its owner may pass
        folder = Path(place)
        folder.chmod(0o755)
        (folder / "closed").mkdir()
        (folder / "closed/b.mp4").write_bytes(b"x")
        (folder / "a.mp4").write_bytes(b"x")
        (folder / "closed").chmod(0)
        mine = os.geteuid()
        if mine == 0:
            os.seteuid(65534)  # to root nothing is closed
        try:
            faults = {source.uri: source.fault for source in list_sources([place], CONFIG)}
        finally:
            os.seteuid(mine)
        (folder / "closed").chmod(0o755)
    assert faults == {f"{place}/a.mp4": None, f"{place}/closed": "may not be read (permission denied)"}


@pytest.mark.parametrize("name", ["pipe", "loop", "x" * 300])
def test_an_input_that_is_no_file_is_refused_in_words(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match=r"pipe and no file|in a circle|longer than"):
        list_sources([str(tmp_path / name)], CONFIG)


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
        "remark": "x" * 10_000,
        "n" * 200: "y",
    }
    row |= {f"column{number:03}": "z" for number in range(100)}
    (folder / "l.jsonl").write_text(json.dumps(row) + "\n")
    found = listed(folder / "l.jsonl")["b.mp4"].attributes
    assert len(found) == 64
    assert found["tags"] == '["a", "b"]'
    assert len(found["remark"]) == 4000
    assert "vector" not in found
    assert "n" * 200 not in found


def test_bytes_and_vectors_of_a_parquet_list_are_left_out(folder: Path) -> None:
    row = {"path": "b.mp4", "thumbnail": b"\xff\xd8", "vector": [0.5, 0.25], "tags": ["sea"], "at": {"x": 1}}
    pq.write_table(pa.Table.from_pylist([row]), folder / "l.parquet")
    assert listed(folder / "l.parquet")["b.mp4"].attributes == {"tags": '["sea"]', "at": '{"x": 1}'}
    said: list[str] = []
    list_sources([str(folder / "l.parquet")], CONFIG, said.append)
    assert [one for one in said if "bytes or vectors: thumbnail, vector" in one]


def test_nested_columns_are_the_same_in_parquet_and_json_lines(folder: Path) -> None:
    row = {
        "path": "b.mp4",
        "meta": {"licence": "CC", "year": 2024, "inner": {"a": [{"b": 1}]}},
        "objects": [{"name": "boat", "count": 1}, {"name": "gull", "count": 3}],
        "words": [["a", "b"], ["c"]],
        "flags": [True, False],
        "map": {"sea": 1, "sky": 2},
    }
    kinds = pa.Table.from_pylist([{name: value for name, value in row.items() if name != "map"}])
    maps = pa.array([list(row["map"].items())], pa.map_(pa.string(), pa.int64()))
    pq.write_table(kinds.append_column("map", maps), folder / "l.parquet")
    (folder / "l.jsonl").write_text(json.dumps(row) + "\n")
    found = listed(folder / "l.parquet")["b.mp4"].attributes
    assert found == listed(folder / "l.jsonl")["b.mp4"].attributes
    assert set(found) == set(row) - {"path"}


@pytest.mark.parametrize("name", ["l.jsonl", "l.parquet", "l.csv"])
def test_a_caption_that_is_a_number_is_its_text(folder: Path, name: str) -> None:
    for value in (5, 2.5):
        if name.endswith("jsonl"):
            (folder / name).write_text(json.dumps({"path": "b.mp4", "caption": value}) + "\n")
        elif name.endswith("parquet"):
            pq.write_table(pa.table({"path": ["b.mp4"], "caption": [value]}), folder / name)
        else:
            (folder / name).write_text(f"path,caption\nb.mp4,{value}\n")
        assert listed(folder / name)["b.mp4"].caption == str(value)


def test_captions_of_segments_may_be_numbers(folder: Path) -> None:
    row = {"path": "b.mp4", "timestamps": [[0, 1], [1, 2]], "captions": [7, "a boat"]}
    (folder / "l.jsonl").write_text(
        json.dumps(row) + '\n{"path": "a.MKV", "start": 0, "end": 1, "caption": 8}\n'
    )
    found = listed(folder / "l.jsonl")
    assert [one.caption for one in found["b.mp4"].segments] == ["7", "a boat"]
    assert [one.caption for one in found["a.MKV"].segments] == ["8"]


def test_captions_by_language_are_refused_in_words(folder: Path) -> None:
    row = {"path": "b.mp4", "caption": {"en": "a boat", "de": "ein Boot"}}
    (folder / "l.jsonl").write_text(json.dumps(row) + '\n{"path": "a.MKV"}\n')
    pq.write_table(pa.Table.from_pylist([row, {"path": "a.MKV"}]), folder / "l.parquet")
    for name in ("l.jsonl", "l.parquet"):
        faults = [one.fault for one in listed(folder / name).values() if one.fault]
        assert len(faults) == 1
        assert "is an object without a text caption or content" in faults[0]


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
    assert redact_input(secret) == found.uri
    assert "hidden" not in redact_input(secret)
    assert redact_input("raw/what?.mp4") == "raw/what?.mp4"


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
    with pytest.raises(UsageError, match=r"gone\.mp4\?token=sha256-\w{16} does not exist"):
        list_sources([f"{web.url}/gone.mp4?token=hidden"], CONFIG)


def test_many_addresses_are_asked_for_side_by_side(web: WebServer, folder: Path) -> None:
    first, waiting = itertools.count(), threading.Barrier(8, timeout=240)

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
