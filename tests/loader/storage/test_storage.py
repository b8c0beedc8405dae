"""What every storage promises, on a local folder and on a real S3 server alike."""

import multiprocessing
import pickle
import threading
from pathlib import Path

import pytest

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_object, open_storage
from tests.s3server import make_bucket, s3_server

AWKWARD = [
    "two words.mp4",
    "-rf",
    "größe/映画 🎬.mp4",
    "100%/a%20b+c.mp4",
    "what?.mp4",
    "take#1.mp4",
    "a&b=c;d'\"<e>.json",
    ".nv-meta/dataset.yaml",
    "~/..hidden...",
]


@pytest.fixture(scope="module")
def config():
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")
        yield StorageConfig(endpoint_url=endpoint, backoff_base_s=0.001)


@pytest.fixture(params=["local", "s3"])
def uri(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def storage(uri, config):
    return open_storage(uri, config)


def paths(storage, prefix=""):
    return [found.path for found in storage.list(prefix)]


def test_an_object_is_read_as_it_was_written(storage):
    storage.write("a/b/c.bin", b"hello")
    assert storage.read("a/b/c.bin") == b"hello"


def test_a_write_replaces_the_object(storage):
    storage.write("a", b"a long first version")
    storage.write("a", b"second")
    assert storage.read("a") == b"second"


def test_a_compare_and_swap_wants_the_version_it_read(storage):
    storage.write("a", b"first")
    version = storage.stat("a").version
    assert storage.replace("a", b"second", version)
    assert not storage.replace("a", b"third", version)
    assert storage.read("a") == b"second"
    assert not storage.replace("never written", b"", version)
    assert paths(storage) == ["a"]


def test_of_many_that_swap_one_version_one_wins(storage):
    storage.write("a", b"first")
    version = storage.stat("a").version
    won = []

    def swap(number):
        if storage.replace("a", b"%d" % number, version):
            won.append(number)

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("a") == b"%d" % won[0]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 3, b"012"),
        (4, None, b"456789"),
        (8, 5, b"89"),
        (3, 0, b""),
        (10, 2, b""),
        (99, None, b""),
        (99, 1, b""),
    ],
)
def test_a_range_ends_where_the_object_ends(storage, start, length, expected):
    storage.write("digits", b"0123456789")
    assert storage.read("digits", start, length) == expected


@pytest.mark.parametrize(("start", "length"), [(0, None), (0, 5), (3, None), (3, 2), (0, 0)])
def test_an_empty_object_reads_as_empty(storage, start, length):
    storage.write("empty", b"")
    assert storage.read("empty", start, length) == b""
    assert storage.open("empty").read() == b""
    assert storage.stat("empty").size == 0


@pytest.mark.parametrize("ask", [(), (5, 0), (5, 1)])
def test_reading_a_missing_object_names_it(storage, ask):
    with pytest.raises(FileNotFoundError, match=r"no/such\.tar"):
        storage.read("no/such.tar", *ask)
    with pytest.raises(FileNotFoundError, match=r"no/such\.tar"):
        storage.open("no/such.tar")


def test_a_folder_is_no_object(storage):
    storage.write("folder/name", b"x")
    assert storage.stat("folder") is None
    storage.delete("folder")
    with pytest.raises(FileNotFoundError):
        storage.read("folder")
    assert storage.read("folder/name") == b"x"


def test_listing_is_sorted_by_full_path(storage):
    names = ["b/x", "b-1", "b.tar", "b0", "a", "b/é", "b/Z/1", "ä", "b/a.tar", "b/a/1"]
    for name in names:
        storage.write(name, b"")
    assert paths(storage) == sorted(names, key=str.encode)


def test_listing_takes_a_prefix_that_ends_anywhere(storage):
    for name in [
        "shards/000000.tar",
        "shards/000000.tar.idx",
        "shards/000010.tar",
        "shards-old/0",
        "index.parquet",
    ]:
        storage.write(name, b"")
    assert paths(storage, "shards/00000") == ["shards/000000.tar", "shards/000000.tar.idx"]
    assert paths(storage, "shards/") == ["shards/000000.tar", "shards/000000.tar.idx", "shards/000010.tar"]
    assert paths(storage, "shards")[0] == "shards-old/0"
    assert paths(storage, "index.parquet") == ["index.parquet"]
    assert paths(storage, "index.parquet/") == []


def test_listing_an_empty_place_gives_nothing(storage):
    assert paths(storage) == paths(storage, "no/such/") == []


def test_list_and_stat_agree_on_size_and_version(storage):
    storage.write("a/b", b"four")
    assert list(storage.list()) == [storage.stat("a/b")]
    assert storage.stat("a/b").size == 4
    assert storage.stat("other") is None


def test_the_version_changes_with_the_content(storage):
    versions = set()
    for number in range(20):
        storage.write("a", b"%02d" % number)
        versions.add(storage.stat("a").version)
    assert len(versions) == 20


def test_create_writes_only_the_first_time(storage):
    assert storage.create("claims/1", b"mine")
    assert not storage.create("claims/1", b"yours")
    assert not storage.create("claims/1", b"mine")
    assert storage.read("claims/1") == b"mine"


def test_readers_see_whole_versions_while_one_writes(storage):
    versions = [bytes([number]) * 200_000 for number in range(8)]
    storage.write("a", versions[0])
    writer = threading.Thread(target=lambda: [storage.write("a", version) for version in versions])
    writer.start()
    while writer.is_alive():
        assert storage.read("a") in versions
    writer.join()


def test_deleting_twice_is_no_error(storage):
    storage.write("a", b"")
    storage.delete("a")
    storage.delete("a")
    storage.delete("no/such/folder/a")
    assert storage.stat("a") is None
    for name in ("a/1", "a/2", "b"):
        storage.write(name, b"")
    storage.delete_many(["a/1", "no/such/folder/a", "a", "b", "a/1"])
    assert paths(storage) == ["a/2"]


def test_delete_tree_removes_what_starts_with_the_prefix_and_nothing_else(storage):
    for name in ["work/1/a", "work/1/b/c", "work/10/a", "work/2/a"]:
        storage.write(name, b"")
    storage.delete_tree("work/1/")
    assert paths(storage) == ["work/10/a", "work/2/a"]
    storage.delete_tree("no/such/")
    storage.delete_tree("")
    assert paths(storage) == []


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_names_are_ordinary(storage, name, tmp_path):
    source = tmp_path.with_name(tmp_path.name + "-source")
    source.write_bytes(b"from a file")
    storage.write(name, b"content")
    assert storage.create(name, b"other") is False
    assert storage.create_file(name, source) is False
    assert paths(storage) == paths(storage, name[:3]) == [name]
    assert storage.read(name, 3) == b"tent"
    assert storage.open(name).read() == b"content"
    storage.write_file(name, source)
    opened, rest = open_object(storage.uri(name), getattr(storage, "config", StorageConfig()))
    assert opened.read(rest) == b"from a file"
    assert opened.uri(rest) == storage.uri(name)
    storage.delete(name)
    assert paths(storage) == []
    assert storage.create_file(name, source) is True
    assert storage.read(name) == b"from a file"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a/..",
        "./x",
        "a/",
        "..\\x",
        "a\\..\\..\\x",
        "\\x",
        "a\0b",
    ],
)
def test_no_path_leaves_the_root(storage, path, tmp_path):
    attempts = [
        lambda: storage.stat(path),
        lambda: storage.read(path),
        lambda: storage.open(path),
        lambda: storage.write(path, b""),
        lambda: storage.write_file(path, Path(__file__)),
        lambda: storage.create(path, b""),
        lambda: storage.delete(path),
        lambda: storage.delete_many([path]),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()


@pytest.mark.parametrize("prefix", ["/", "../", "a/../../b"])
def test_no_prefix_leaves_the_root(storage, prefix):
    with pytest.raises(UsageError):
        list(storage.list(prefix))
    with pytest.raises(UsageError):
        storage.delete_tree(prefix)


def test_an_open_object_can_be_sought_and_read_like_a_file(storage):
    content = bytes(range(256)) * 10_000
    storage.write("video.mp4", content)
    with storage.open("video.mp4") as file:
        assert file.seek(-300, 2) == len(content) - 300
        assert file.read() == content[-300:]
        file.seek(1_048_570)
        assert file.read(20) == content[1_048_570:1_048_590]
        file.seek(5, 1)
        assert file.read(1) == content[1_048_595:1_048_596]
        file.seek(0)
        assert file.read() == content
        assert file.read() == b""
        file.seek(len(content) + 10)
        assert file.read() == b""


def test_a_file_is_written_as_an_object(storage, tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "large.bin"
    source.write_bytes(bytes(3_000_000))
    storage.write_file("folder/large.bin", source)
    assert storage.read("folder/large.bin") == bytes(3_000_000)


def test_chunks_are_written_as_one_object(storage):
    storage.write_chunks("a", iter([b"one", memoryview(b"two"), b""]), 6)
    storage.write_chunks("empty", iter([]), 0)
    assert (storage.read("a"), storage.read("empty")) == (b"onetwo", b"")


def test_chunks_that_break_off_write_nothing(storage):
    def chunks():
        yield b"half"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        storage.write_chunks("a", chunks(), 8)
    assert paths(storage) == []


def test_a_file_that_is_missing_writes_nothing(storage):
    with pytest.raises(FileNotFoundError):
        storage.write_file("a", Path("/no/such/file"))
    assert paths(storage) == []


def _copy_in_another_process(storage):
    storage.write("copy", storage.read("original"))


def test_a_storage_can_be_sent_to_a_fresh_process(storage):
    storage.write("original", b"from the parent")
    process = multiprocessing.get_context("spawn").Process(
        target=_copy_in_another_process, args=(storage,), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert storage.read("copy") == b"from the parent"


def test_a_storage_can_be_used_after_a_fork(storage):
    storage.write("original", b"from the parent")
    process = multiprocessing.get_context("fork").Process(
        target=_copy_in_another_process, args=(storage,), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert storage.read("copy") == b"from the parent"


def test_neither_repr_nor_pickle_holds_credentials(storage):
    list(storage.list())
    for shown in (repr(storage), pickle.dumps(storage).decode("latin-1")):
        assert "test-secret" not in shown
        assert "test-key-id" not in shown


def test_root_is_the_uri_without_a_trailing_slash(uri, config):
    assert open_storage(f"{uri}/", config).root == uri
    assert open_storage(uri, config).uri("a/b") == f"{uri}/a/b"
