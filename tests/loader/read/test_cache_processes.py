"""The disk cache under several processes that are killed, cannot write, or fill the disk."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from reelweave.loader.read.cache import DiskCache
from tests.loader.read.test_cache import BLOCK, entries, kept, own, space

CONTENT = """
import hashlib

def content(name):
    length = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 150_000
    return hashlib.shake_128(name.encode()).digest(length)
"""
WORKER = (
    CONTENT
    + """
import random, sys
from reelweave.loader.read.cache import DiskCache
folder, limit, seed, rounds = sys.argv[1], *map(int, sys.argv[2:])
cache, moments = DiskCache(folder, limit), random.Random(seed)
print("ready", flush=True)
for _ in range(rounds):
    name = str(moments.randrange(60))
    assert cache.get(name, lambda: content(name)) == content(name), name
"""
)


def content(name: str) -> bytes:
    length = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 150_000
    return hashlib.shake_128(name.encode()).digest(length)


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_use_in_one_process_counts_for_all(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * BLOCK)
    for name in range(11):  # there is a list of who leaves next already
        cache.keep(str(name), b"x")
    use = (
        "import sys; from reelweave.loader.read.cache import DiskCache\n"
        "assert DiskCache(sys.argv[1], 40960).find(sys.argv[2])"
    )
    for name in (4, 1, 2):
        run(use, tmp_path, name)
    for name in range(11, 18):
        cache.keep(str(name), b"x")
    assert kept(cache, range(18)) == [1, 2, 4, 11, 12, 13, 14, 15, 16, 17]


def test_processes_that_share_a_folder_get_right_bytes_within_the_limit(tmp_path: Path) -> None:
    limit = 1_500_000  # a third of all entries
    workers = [start(WORKER, tmp_path, limit, seed, 200) for seed in range(4)]
    most = 0
    while any(worker.poll() is None for worker in workers):
        try:
            most = max(most, space(tmp_path))
        except FileNotFoundError:  # one left while they were counted
            continue
        time.sleep(0.005)  # else this process takes more of a processor than they do
    most = max(most, space(tmp_path))
    # On a busy disk one may wait too long for the others, go on without keeping, and say so.
    assert [(worker.wait(), "Error" in worker.stderr.read()) for worker in workers] == [(0, False)] * 4
    assert 0.5 * limit < most <= limit


def test_whenever_a_process_is_killed_nothing_wrong_is_left(tmp_path: Path) -> None:
    limit, moments = 1_500_000, random.Random(0)
    for seed in range(3):
        workers = [start(WORKER, tmp_path, limit, seed + 100 * number, 10**9) for number in range(2)]
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2
        time.sleep(moments.uniform(0.0, 0.2))
        for worker in workers:
            worker.kill()
        assert [worker.wait() for worker in workers] == [-signal.SIGKILL] * 2
        assert space(tmp_path) <= limit
    cache = DiskCache(tmp_path, limit)
    found = {name: cache.find(str(name)) for name in range(60)}
    assert {name: data for name, data in found.items() if data not in (None, content(str(name)))} == {}
    for name in range(60):
        assert cache.get(str(name), lambda name=name: content(str(name))) == content(str(name))
    assert space(tmp_path) <= limit
    assert {path.name for path in own(tmp_path).iterdir()} - {path.name for path in entries(tmp_path)} == {
        "state",
        "oldest",
    }


def test_a_process_killed_in_the_middle_of_writing_leaves_nothing_that_counts(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from reelweave.loader.base.shared.cache_space import CacheSpace
from pathlib import Path

def die(file):
    file.write(bytes(20_000))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

space = CacheSpace(Path(sys.argv[1]), 10 * 4096)
space.place(space.path(bytes(20)), 20_000, die)
"""
    cache = DiskCache(tmp_path, 10 * BLOCK)
    cache.keep("0", b"x")
    for _ in range(3):
        assert start(code, tmp_path).wait() == -signal.SIGKILL
    assert (own(tmp_path) / "unfinished").stat().st_size == 20_000
    for name in range(12):
        cache.keep(str(name), b"x")
    assert not (own(tmp_path) / "unfinished").exists()
    assert kept(cache, range(12)) == list(range(2, 12))


def test_a_full_disk_costs_the_caching_only(tmp_path: Path) -> None:
    code = """
import json, logging, resource, sys
import reelweave.loader.read.cache
from reelweave.loader.read.cache import DiskCache

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("reelweave.loader").addHandler(handler)
reelweave.loader.read.cache._PAUSE_S = 0.0
cache = DiskCache(sys.argv[1], 10**6)
cache.keep("small", b"x" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
loads = []
for _ in range(3):
    assert cache.get("large", lambda: loads.append(1) or bytes(60_000)) == bytes(60_000)
assert cache.find("small") == b"x" * 100
print(json.dumps([len(loads), len(messages)]))
"""
    assert json.loads(run(code, tmp_path)) == [3, 1]
    assert not (own(tmp_path) / "unfinished").exists()


def test_a_folder_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    code = """
import json, logging, os, sys
import reelweave.loader.read.cache
from reelweave.loader.read.cache import DiskCache

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("reelweave.loader").addHandler(handler)
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
cache = DiskCache(sys.argv[1], 10**6)
reelweave.loader.read.cache._PAUSE_S = 0.0
assert cache.find("old") == b"old"
for _ in range(3):
    assert cache.get("new", lambda: b"new") == b"new"
assert cache.find("new") is None
print(json.dumps(len(messages)))
"""
    with tempfile.TemporaryDirectory() as name:  # unlike tmp_path open to other users
        folder = Path(name)
        DiskCache(folder, 10**6).keep("old", b"old")
        for path in (folder, own(folder), *own(folder).iterdir()):
            path.chmod(0o555)
        assert json.loads(run(code, folder)) == 1
        for path in (folder, own(folder)):
            path.chmod(0o755)


@pytest.mark.parametrize("first", ["keep", "find"])
def test_a_copy_in_a_forked_process_goes_on(tmp_path: Path, first: str) -> None:
    code = """
import os, sys
from reelweave.loader.read.cache import DiskCache
cache = DiskCache(sys.argv[1], 10**6)
if sys.argv[2] == "keep":
    cache.keep("parent", b"parent")
else:
    assert cache.find("parent") is None
child = os.fork()
if not child:
    cache.keep("child", b"child")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert cache.find("child") == b"child"
"""
    run(code, tmp_path, first)


def test_a_process_forked_while_another_thread_writes_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from reelweave.loader.read.cache import DiskCache
cache = DiskCache(sys.argv[1], 10**6)
with cache._space._alone():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
cache.keep("a", b"x")
os.kill(child, signal.SIGKILL)
assert cache.find("a") == b"x"
"""
    run(code, tmp_path)
