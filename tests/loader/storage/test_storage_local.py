"""What only a local folder can get wrong: links, killed writers, permissions."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage


@pytest.fixture
def storage(tmp_path):
    (tmp_path / "root").mkdir()
    return open_storage(tmp_path / "root")


def paths(storage, prefix=""):
    return [found.path for found in storage.list(prefix)]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def killed_writer(storage, tmp_path):
    """A process was killed while it was writing "a/shard.tar"; its source is a pipe that never ends."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = multiprocessing.get_context("fork").Process(
        target=storage.write_file, args=("a/shard.tar", pipe)
    )
    process.start()
    with pipe.open("wb") as feed:
        feed.write(bytes(5 << 20))  # more than the pipe holds: returns when most of it has been copied
        deadline = time.monotonic() + 300
        while sum(file.stat().st_size for file in (tmp_path / "root").rglob(".*")) < 2 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture
def old_object(storage):
    storage.write("a/shard.tar", b"old")


def test_a_killed_writer_leaves_the_old_object_whole_and_nothing_listed(old_object, killed_writer, storage):
    assert storage.read("a/shard.tar") == b"old"
    assert paths(storage) == ["a/shard.tar"]


def test_a_killed_first_writer_leaves_no_object(killed_writer, storage):
    assert storage.stat("a/shard.tar") is None
    assert paths(storage) == []


def test_a_sweep_removes_what_a_killed_writer_left(old_object, killed_writer, storage, tmp_path):
    storage.sweep()
    assert names_in(tmp_path / "root" / "a") == ["shard.tar"]
    assert storage.read("a/shard.tar") == b"old"


def test_of_many_that_create_at_once_one_wins(storage):
    won, barrier = [], threading.Barrier(6)

    def claim(who):
        barrier.wait()
        if storage.create("claim", who):
            won.append(who)

    threads = [threading.Thread(target=claim, args=(b"%d" % number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [storage.read("claim")]


def test_a_write_leaves_no_other_file(storage, tmp_path):
    storage.write("a", b"1")
    storage.create("a", b"2")
    storage.create("b", b"3")
    with pytest.raises(RunError):
        storage.write("a/b", b"4")
    assert names_in(tmp_path / "root") == ["a", "b"]


def test_create_below_a_file_fails_rather_than_finding_it(storage):
    storage.write("a", b"")
    with pytest.raises(RunError, match="a/b"):
        storage.create("a/b", b"")


def test_new_files_have_the_usual_permissions(storage, tmp_path):
    (tmp_path / "usual").touch()
    storage.write("a", b"")
    assert (tmp_path / "root" / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_delete_tree_leaves_no_empty_folders_below_the_prefix(storage, tmp_path):
    for name in ["work/1/a/b", "work/1/c"]:
        storage.write(name, b"")
    storage.delete_tree("work/1/")
    (tmp_path / "root" / "work" / "2" / "a").mkdir(
        parents=True
    )  # as a writer leaves it whose first file failed
    storage.delete_tree("work/2/")
    assert list((tmp_path / "root").rglob("*")) == [tmp_path / "root" / "work"]


def test_sources_behind_links_are_listed_and_read(storage, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "clip.mp4").write_bytes(b"clip")
    (tmp_path / "root" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "file.mp4").symlink_to(tmp_path / "outside" / "clip.mp4")
    assert paths(storage) == ["file.mp4", "folder/clip.mp4"]
    assert storage.read("file.mp4") == storage.read("folder/clip.mp4") == b"clip"


def test_writing_and_deleting_do_not_follow_links_out(storage, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (tmp_path / "root" / "folder").symlink_to(outside)
    storage.write("inside", b"")
    attempts = [
        lambda: storage.write("folder/new", b""),
        lambda: storage.write("folder/deep/new", b""),
        lambda: storage.create("folder/new", b""),
        lambda: storage.delete("folder/kept"),
        lambda: storage.delete_many(["folder/kept"]),
        lambda: storage.delete_tree(""),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="folder"):
            attempt()
    assert names_in(outside) == ["kept"]
    assert storage.stat("inside")


def test_writing_over_a_link_replaces_the_link(storage, tmp_path):
    (tmp_path / "outside").write_bytes(b"kept")
    (tmp_path / "root" / "a").symlink_to(tmp_path / "outside")
    storage.write("a", b"new")
    assert storage.read("a") == b"new"
    assert (tmp_path / "outside").read_bytes() == b"kept"


def test_a_link_that_leads_back_up_ends(storage, tmp_path):
    storage.write("a/b", b"")
    (tmp_path / "root" / "a" / "loop").symlink_to(tmp_path / "root")
    assert paths(storage) == ["a/b"]


def test_a_root_that_is_a_link_is_written_through(storage, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "root")
    open_storage(tmp_path / "link").write("a/b", b"x")
    assert storage.read("a/b") == b"x"


def test_pipes_sockets_and_dead_links_are_no_objects(storage, tmp_path):
    os.mkfifo(tmp_path / "root" / "pipe")
    (tmp_path / "root" / "dead").symlink_to(tmp_path / "nowhere")
    assert paths(storage) == []
    assert storage.stat("pipe") is storage.stat("dead") is None


def test_names_that_are_not_unicode_are_listed_and_read(storage, tmp_path):
    with open(os.fsencode(tmp_path / "root") + b"/caf\xe9.mp4", "wb") as file:  # noqa: PTH123 - a name in bytes
        file.write(b"x")
    assert [storage.read(path) for path in paths(storage)] == [b"x"]


def test_a_failed_write_names_the_object_and_the_reason(storage):
    with pytest.raises(RunError, match=r"root/x{300}.*too long"):
        storage.write("x" * 300, b"")
