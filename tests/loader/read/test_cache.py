"""The disk cache: what it gives back, who leaves it, and what it leaves alone. Processes: test_cache_processes.py."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

import reelweave.loader.base.shared.cache_space
import reelweave.loader.read.cache
from reelweave.loader.read.cache import CacheConfig, DiskCache

BLOCK = 4096


def own(folder: Path) -> Path:
    return folder / "reelweave-cache-1"


def entries(folder: Path) -> list[Path]:
    return sorted(own(folder).glob("*.entry"))


def space(folder: Path) -> int:
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in entries(folder))


def never() -> bytes:
    raise AssertionError("it was loaded again")


def kept(cache: DiskCache, names: range) -> list[int]:
    """Those that are there; asking is no use of them only because everything is asked in order."""
    return [name for name in names if cache.find(str(name)) is not None]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    return caplog


@pytest.fixture(autouse=True)
def no_warnings(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    """A cache that gives up goes on all the same; only a test that asks for the log expects it to."""
    yield
    if "log" not in request.fixturenames:
        assert [record.getMessage() for record in caplog.get_records("call")] == []


def test_what_was_loaded_once_is_there_for_a_later_run(tmp_path: Path) -> None:
    assert DiskCache(tmp_path / "new" / "folder", 10**6).get("a", lambda: b"bytes") == b"bytes"
    assert DiskCache(tmp_path / "new" / "folder", 10**6).get("a", never) == b"bytes"


def test_every_string_is_a_name(tmp_path: Path) -> None:
    names = ["", "/", "../../up", "a/b.tar@0+512", "a/b.tar@0+5120", "ü\0\udcff\n", "x" * 10_000, "A", "a"]
    cache = DiskCache(tmp_path, 10**6)
    for number, name in enumerate(names):
        cache.keep(name, bytes([number]) * number)
    assert [cache.find(name) for name in names] == [bytes([number]) * number for number in range(len(names))]
    assert list(tmp_path.iterdir()) == [own(tmp_path)]


def test_a_load_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10**6)
    with pytest.raises(ConnectionError):
        cache.get("a", lambda: (_ for _ in ()).throw(ConnectionError()))
    assert cache.get("a", lambda: b"later") == b"later"


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * BLOCK)
    for name in range(10):
        cache.keep(str(name), b"x")
    for name in (3, 0, 7):
        assert cache.find(str(name))
    for name in range(10, 17):
        cache.keep(str(name), b"x")
    assert kept(cache, range(17)) == [0, 3, 7, 10, 11, 12, 13, 14, 15, 16]
    cache = DiskCache(tmp_path, 10 * BLOCK)  # a restart
    for name in (0, 3, 11):
        assert cache.find(str(name))
    for name in range(17, 22):
        cache.keep(str(name), b"x")
    assert kept(cache, range(22)) == [0, 3, 11, 15, 16, 17, 18, 19, 20, 21]


def test_an_entry_used_after_it_was_chosen_to_leave_stays(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100 * BLOCK)
    for name in range(101):  # the last one makes a list of the ten oldest and removes 0
        cache.keep(str(name), b"x")
    assert cache.find("2")
    for name in range(101, 104):
        cache.keep(str(name), b"x")
    assert kept(cache, range(6)) == [2, 5]


def test_the_space_is_never_exceeded(tmp_path: Path) -> None:
    limit = 300_000
    cache = DiskCache(tmp_path, limit)
    for name in range(200):
        cache.keep(str(name), bytes(name * 997 % 60_000))
        assert space(tmp_path) <= limit
    assert space(tmp_path) > 0.7 * limit


def test_a_replaced_entry_gives_its_space_back(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4 * BLOCK)
    for name in ("a", "b", "c", *"d" * 20):
        cache.keep(name, b"x")
    assert all(cache.find(name) for name in "abcd")


def test_a_dropped_entry_is_gone_and_gives_its_space_back(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4 * BLOCK)
    for name in "abc":
        cache.keep(name, b"x")
    for turn in range(20):
        cache.keep("d", b"x")
        cache.drop("d")
        cache.drop(f"never there {turn}")
    assert cache.find("d") is None
    assert all(cache.find(name) for name in "abc")
    DiskCache(tmp_path / "nobody made it", BLOCK).drop("a")


def test_what_is_larger_than_the_cache_is_not_kept_and_drives_nobody_out(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4 * BLOCK)
    cache.keep("small", b"x")
    assert cache.get("large", lambda: bytes(4 * BLOCK)) == bytes(4 * BLOCK)
    assert cache.find("large") is None
    assert cache.find("small") == b"x"


def test_a_smaller_limit_holds_from_the_next_entry_on(tmp_path: Path) -> None:
    for name in range(50):
        DiskCache(tmp_path, 50 * BLOCK).keep(str(name), b"x")
    cache = DiskCache(tmp_path, 5 * BLOCK)
    cache.keep("50", b"x")
    assert kept(cache, range(51)) == [46, 47, 48, 49, 50]


def test_all_entries_are_looked_at_once_for_a_tenth_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scandir(path))
    cache = DiskCache(tmp_path, 100 * BLOCK)
    for name in range(500):
        cache.keep(str(name), b"x")
    assert 0 < len(looks) <= 45


@pytest.mark.parametrize("place", [0, 5, 8, 11, 12, 1000, -1])
def test_a_damaged_entry_is_loaded_again_and_replaced(tmp_path: Path, place: int) -> None:
    data = os.urandom(5000)
    cache = DiskCache(tmp_path, 10**6)
    cache.keep("a", data)
    (entry,) = entries(tmp_path)
    damaged = bytearray(entry.read_bytes())
    damaged[place] ^= 1
    entry.write_bytes(damaged)
    assert cache.find("a") is None
    assert cache.get("a", lambda: data) == data
    assert cache.get("a", never) == data


@pytest.mark.parametrize("left", [0, 3, 12, 13, 4999, 5011])
def test_an_entry_that_was_cut_off_is_loaded_again(tmp_path: Path, left: int) -> None:
    data = os.urandom(5000)
    cache = DiskCache(tmp_path, 10**6)
    cache.keep("a", data)
    os.truncate(entries(tmp_path)[0], left)
    assert cache.get("a", lambda: data) == data
    assert cache.get("a", never) == data


def test_the_bytes_of_another_entry_are_not_taken_for_it(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10**6)
    cache.keep("a", b"of a")
    (entry,) = entries(tmp_path)
    cache.keep("b", b"of b")
    (other,) = set(entries(tmp_path)) - {entry}
    other.write_bytes(entry.read_bytes())
    assert cache.find("b") is None


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"somebody's only copy")
    cache_folder = tmp_path / "cache"
    cache = DiskCache(cache_folder, 4 * BLOCK)
    cache.keep("0", b"x")
    foreign = [
        cache_folder / "000000.tar",
        own(cache_folder) / "000000.tar",
        own(cache_folder) / f"{'a' * 40}.tar",
        own(cache_folder) / f"{'A' * 40}.entry",
        own(cache_folder) / f"{'a' * 41}.entry",
        own(cache_folder) / "folder" / f"{'a' * 40}.entry",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100_000))
        os.utime(path, (0, 0))
    link, folder = own(cache_folder) / f"{'b' * 40}.entry", own(cache_folder) / f"{'c' * 40}.entry"
    link.symlink_to(outside)
    folder.mkdir()
    for name in range(1, 30):
        cache.keep(str(name), b"x")
    assert kept(cache, range(30)) == [26, 27, 28, 29]
    assert all(path.stat().st_size == 100_000 for path in foreign)
    assert link.is_symlink()
    assert folder.is_dir()
    assert outside.read_bytes() == b"somebody's only copy"


def test_a_link_in_the_place_of_an_entry_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10**6)
    cache.keep("a", b"data")
    (entry,) = entries(tmp_path)
    outside = tmp_path / "outside"
    entry.rename(outside)
    good = outside.read_bytes()
    entry.symlink_to(outside)
    assert cache.find("a") is None
    cache.keep("a", b"other data")
    assert cache.find("a") == b"other data"
    assert outside.read_bytes() == good


@pytest.mark.parametrize("name", ["state", "oldest"])
def test_bookkeeping_does_not_write_through_a_link(
    tmp_path: Path, name: str, log: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path, 2 * BLOCK)
    for number in range(3):
        cache.keep(str(number), b"x")
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(280))
    (own(tmp_path) / name).unlink()
    (own(tmp_path) / name).symlink_to(outside)
    for number in range(3, 9):
        assert cache.get(str(number), lambda: b"x") == b"x"
    assert outside.read_bytes() == bytes(280)


@pytest.mark.parametrize("kind", ["folder of others", "link", "file"])
def test_a_sub_folder_of_others_is_left_alone(
    tmp_path: Path, kind: str, log: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if kind == "folder of others":
        own(tmp_path).mkdir()
        (own(tmp_path) / "notes.txt").write_text("mine")
    elif kind == "link":
        own(tmp_path).symlink_to(other)
    else:
        own(tmp_path).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    cache = DiskCache(tmp_path, 10**6)
    for name in ("a", "b", "a"):
        assert cache.get(name, lambda: b"x") == b"x"
    assert sorted(tmp_path.rglob("*")) == before
    assert len(log.records) == 1


def test_a_lock_that_is_never_released_costs_the_caching_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    import fcntl

    monkeypatch.setattr(reelweave.loader.base.shared.cache_space, "_PATIENCE_S", 1.0)
    cache = DiskCache(tmp_path, 10**6)
    cache.keep("a", b"x")
    with (own(tmp_path) / "state").open("r+b") as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        began = time.monotonic()
        for name in range(100):
            assert cache.get(str(name), lambda: b"y") == b"y"
        assert cache.get("a", never) == b"x"
        assert time.monotonic() - began < 50 * 1.0  # if each of the hundred waited, twice that
    assert len(log.records) == 1


def test_entries_that_somebody_removed_are_no_longer_counted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 20 * BLOCK)
    for name in range(20):
        cache.keep(str(name), b"x")
    for path in entries(tmp_path):
        path.unlink()
    for name in range(20, 40):
        cache.keep(str(name), b"x")
    assert kept(cache, range(20, 40)) == list(range(20, 40))


def test_a_count_from_before_a_crash_of_the_machine_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in range(20):
        DiskCache(tmp_path, 20 * BLOCK).keep(str(name), b"x")
    state = own(tmp_path) / "state"
    old = state.read_bytes()
    state.write_bytes(b"0" * 36 + old[36:37] + b"0" * 20 + b"\n")
    cache = DiskCache(tmp_path, 20 * BLOCK)
    cache.keep("20", b"x")
    assert kept(cache, range(21)) == list(range(1, 21))


@pytest.mark.parametrize("content", [b"", b"junk", bytes(58)])
def test_damaged_bookkeeping_is_made_anew(tmp_path: Path, content: bytes) -> None:
    cache = DiskCache(tmp_path, 10 * BLOCK)
    for name in range(12):
        cache.keep(str(name), b"x")
    (own(tmp_path) / "state").write_bytes(content)
    (own(tmp_path) / "oldest").write_bytes(content)
    for name in range(12, 20):
        cache.keep(str(name), b"x")
    assert kept(cache, range(20)) == list(range(10, 20))


def test_a_clock_that_was_set_back_does_not_fill_the_cache_for_ever(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * BLOCK)
    for name in range(10):
        cache.keep(str(name), b"x")
    next_year = time.time() + 365 * 86400
    for path in entries(tmp_path):
        os.utime(path, (next_year, next_year))
    for name in range(10, 15):
        cache.keep(str(name), b"x")
    assert kept(cache, range(10, 15)) == [10, 11, 12, 13, 14]


def test_threads_that_miss_at_once_all_get_it(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10**6)
    ready = threading.Barrier(8)
    got = []

    def load() -> bytes:
        ready.wait(10)
        return b"x" * 9000

    threads = [threading.Thread(target=lambda: got.append(cache.get("a", load))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [b"x" * 9000] * 8
    assert len(entries(tmp_path)) == 1


def test_a_folder_that_cannot_be_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reelweave.loader.read.cache, "_PAUSE_S", 0.0)
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file", 10**6)
    for name in range(5):
        assert cache.get(str(name), lambda: b"x") == b"x"
    assert len(log.records) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"max_gib": 0},
        {"max_gib": -1},
        {"max_gib": float("inf")},
        {"folder": "s3://bucket/x"},
        {"folder": ""},
        {"folder": "a\0b"},
    ],
)
def test_a_wrong_configuration_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CacheConfig.model_validate({"folder": "cache", "max_gib": 1, **values})


def test_the_limit_is_given_in_gib(tmp_path: Path) -> None:
    assert CacheConfig(folder=tmp_path, max_gib=1.5).max_bytes == 3 * 2**29
