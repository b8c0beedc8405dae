"""One writer at a time, on a folder and on a real S3 server: real processes, killed and stopped ones too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reelweave.loader.dataset import ShardRecord, open_dataset, publish, read_manifest, verify, write_shard
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage, StorageConfig, hold_lease, open_storage
from reelweave.loader.storage.leases import fenced
from reelweave.loader.storage.leases.fenced import Fence
from reelweave.loader.storage.leases.holder import LeaseHolder, read_holder
from reelweave.loader.storage.leases.timed_lease import TimedLease
from reelweave.loader.storage.names import LEASE
from tests.loader.dataset.test_dataset import make_sample
from tests.loader.dataset.test_revisions import accounted
from tests.s3server import FaultyProxy, make_bucket, s3_server
from tests.thorough import beyond

LASTS_S = 1.2

# Takes the lease, tells so, writes as long as it may, and tells why it may not any more. With a fourth argument it
# stops itself between its first write and its second.
HOLD = """
import os, signal, sys, time
from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, hold_lease, open_storage
config = StorageConfig.model_validate_json(sys.argv[2])
try:
    with hold_lease(open_storage(sys.argv[1], config), "a test") as storage:
        print("held", flush=True)
        for number in range(2000):
            storage.write(f"{sys.argv[3]}/{number}", b"mine")
            if len(sys.argv) > 4 and number == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.05)
except RunError as error:
    print(error, flush=True)
    sys.exit(1)
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "lake")
        yield url


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, StorageConfig]:
    if request.param == "folder":
        return str(tmp_path / "out"), StorageConfig()
    endpoint = request.getfixturevalue("endpoint")
    config = StorageConfig(endpoint_url=endpoint, region="us-east-1", lease_s=LASTS_S)
    return f"s3://lake/{tmp_path.name}", config


class Writer:
    """Another process, which holds the lease of a place and writes to it."""

    def __init__(self, uri: str, config: StorageConfig, *, stops: bool = False) -> None:
        words = [sys.executable, "-c", HOLD, uri, config.model_dump_json(), "other", *(["stops"] * stops)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.said = self.read()

    def wait_until_stopped(self) -> None:
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_for_the_last_renewal(storage: Storage) -> None:
    """Wait until the lease was the same for two renewals' time: its stopped holder may have sent one more."""
    version, since = "", time.monotonic()
    while time.monotonic() - since < LASTS_S / 2:
        info = storage.stat(LEASE)
        assert info is not None
        if info.version != version:
            version, since = info.version, time.monotonic()
        time.sleep(0.02)


@pytest.fixture
def writer(place: tuple[str, StorageConfig]) -> Iterator[Writer]:
    # It lives or is known to be dead: no lease needs to run out, and on a busy machine a short one might.
    other = Writer(place[0], place[1].model_copy(update={"lease_s": 10.0}))
    yield other
    other.kill()


def test_whoever_comes_too_late_is_told_who_holds_it_and_writes_nothing(
    place: tuple[str, StorageConfig], writer: Writer
) -> None:
    with pytest.raises(RunError) as refused, hold_lease(open_storage(*place), "b"):
        pass
    message = str(refused.value)
    assert f"process {writer.process.pid}, a test, since 20" in message
    assert os.uname().nodename in message
    assert "run the same command again" in message


def test_a_killed_holder_is_followed_at_once(place: tuple[str, StorageConfig], writer: Writer) -> None:
    writer.kill()
    long = place[1].model_copy(update={"lease_s": 3600.0})  # it is known to be dead, so nobody waits
    with hold_lease(open_storage(place[0], long), "b") as storage:
        storage.write("b", b"b")
    assert read_holder(open_storage(*place)) is None
    assert LEASE not in [item.path for item in open_storage(*place).list()]


def test_a_stopped_holder_keeps_a_folder(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), StorageConfig())
    os.kill(writer.process.pid, signal.SIGSTOP)
    with (
        pytest.raises(RunError, match=f"process {writer.process.pid}"),
        hold_lease(open_storage(tmp_path), "b"),
    ):
        pass
    writer.kill()


@pytest.mark.parametrize("still_there", beyond(1, [True, False]), ids=["next at work", "next has ended"])
def test_a_stopped_holder_that_was_followed_writes_nothing_more(
    endpoint: str, tmp_path: Path, still_there: bool
) -> None:
    uri = f"s3://lake/{tmp_path.name}"
    config = StorageConfig(endpoint_url=endpoint, region="us-east-1", lease_s=LASTS_S)
    storage = open_storage(uri, config)
    # It stops between two writes: what was sent before arrives whoever holds the lease (docs/notes/lease.md, layer 3).
    writer = Writer(uri, config, stops=True)
    try:
        writer.wait_until_stopped()
        wait_for_the_last_renewal(storage)
        with hold_lease(storage, "the next"):
            before = {item.path for item in storage.list("other/")}
            if still_there:
                os.kill(writer.process.pid, signal.SIGCONT)
                said = writer.read()
                assert "lost its lease" in said
                assert "the next" in said
            began = time.monotonic()
        released_s = time.monotonic() - began
        os.kill(writer.process.pid, signal.SIGCONT)
        if not still_there:
            assert "lost its lease" in writer.read()
        assert writer.process.wait() == 1
        assert {item.path for item in storage.list("other/")} == before
        # A release that took half of the lease leaves it to run out, since it may not be ours any more.
        assert read_holder(storage) is None or released_s >= LASTS_S / 2
    finally:
        writer.kill()


@pytest.mark.parametrize(("lasts_s", "looks_after_s"), [(1.0, 0.5), (1.2, 0.6), (60.0, 2.0), (0.0, 2.0)])
def test_a_fence_looks_again_before_its_lease_can_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts_s: float, looks_after_s: float
) -> None:
    storage, now = open_storage(tmp_path), [100.0]
    monkeypatch.setattr(fenced, "elapsed_s", lambda: now[0])
    mine = replace(LeaseHolder.here("a"), lasts_s=lasts_s)
    storage.write(LEASE, mine.to_bytes())
    fence = Fence(storage, mine.id)
    fence.check()
    storage.write(LEASE, LeaseHolder.here("b").to_bytes())
    now[0] += 0.9 * looks_after_s
    fence.check()
    now[0] += 0.2 * looks_after_s
    with pytest.raises(RunError, match="lost its lease"):
        fence.check()


def test_a_lease_that_nobody_renews_is_waited_for_and_then_taken(place: tuple[str, StorageConfig]) -> None:
    if place[0].startswith("/"):
        pytest.skip("a folder's lease ends with its process")
    storage = open_storage(*place)
    # Of a machine whose clock is years ahead, where nobody can look whether the process lives.
    gone = replace(
        LeaseHolder.here("a"),
        process="",
        host="elsewhere",
        since="2099-01-01T00:00:00+00:00",
        lasts_s=LASTS_S,
    )
    storage.write(LEASE, gone.to_bytes())
    began = time.monotonic()
    with hold_lease(storage, "b"):
        assert time.monotonic() - began >= LASTS_S
    storage.write(LEASE, b"[[[ damaged")
    with hold_lease(storage, "b"):
        holder = read_holder(storage)
        assert holder is not None
        assert holder.command == "b"


def test_a_holder_outlives_its_lease_as_long_as_it_renews_it(endpoint: str, tmp_path: Path) -> None:
    storage = open_storage(
        f"s3://lake/{tmp_path.name}", StorageConfig(endpoint_url=endpoint, region="us-east-1")
    )
    now = [0.0]
    lease = TimedLease(storage, LeaseHolder.here("a"), 600.0, clock=lambda: now[0])
    lease.acquire()
    now[0] += 1e6  # its clock jumps, and nobody took over
    version = lease._version
    assert lease.renew()
    lease._version = version  # the server went away before it told the next one
    assert lease.renew()
    taken = LeaseHolder.here("b")
    storage.write(LEASE, taken.to_bytes())
    assert not lease.renew()
    lease.release()
    assert read_holder(storage) == taken


def test_a_lease_that_was_lost_is_not_given_back_for_the_next(endpoint: str, tmp_path: Path) -> None:
    storage = open_storage(
        f"s3://lake/{tmp_path.name}", StorageConfig(endpoint_url=endpoint, region="us-east-1")
    )
    with hold_lease(storage, "a") as held:
        taken = LeaseHolder.here("b")
        storage.write(LEASE, taken.to_bytes())
        for write in (
            lambda: held.create("manifest.json", b"a"),
            lambda: held.replace("manifest.json", b"a", "x"),
            lambda: held.sweep(),
        ):
            with pytest.raises(RunError, match="lost its lease"):
                write()
    assert read_holder(storage) == taken


def test_a_server_without_conditional_writes_is_refused_in_words(endpoint: str, tmp_path: Path) -> None:
    with FaultyProxy(endpoint, ignored=("if-match", "if-none-match")) as proxy:
        config = StorageConfig(endpoint_url=proxy.url, region="us-east-1")
        storage = open_storage(f"s3://lake/{tmp_path.name}", config)
        with pytest.raises(RunError, match="ignores the conditions"), hold_lease(storage, "a"):
            pass
    assert read_holder(open_storage(storage.root, StorageConfig(endpoint_url=endpoint))) is None


def test_a_lost_answer_does_not_lose_the_lease(endpoint: str, tmp_path: Path) -> None:
    with FaultyProxy(endpoint) as proxy:
        proxy.lose_answer(match=f"^PUT.*{LEASE}", times=2)
        config = StorageConfig(endpoint_url=proxy.url, region="us-east-1", backoff_base_s=0.01)
        with hold_lease(open_storage(f"s3://lake/{tmp_path.name}", config), "a") as storage:
            storage.write("a", b"a")


def test_what_a_lease_says_is_never_a_secret_nor_a_sequence_for_the_terminal() -> None:
    odd = json.loads(LeaseHolder.here("a").to_bytes()) | {"user": "\x1b[31mroot\n" + "x" * 5000}
    holder = LeaseHolder.from_bytes(json.dumps(odd).encode())
    assert holder is not None
    assert str(holder).isprintable()
    assert len(str(holder)) < 500
    assert LeaseHolder.from_bytes(b"[" * 4096) is None
    assert LeaseHolder.from_bytes(b"{}") is None


def shards(storage: Storage, first: int) -> list[ShardRecord]:
    return [write_shard(storage, number, [make_sample(first + number)]) for number in range(2)]


def test_without_any_lease_nothing_that_a_manifest_names_is_replaced(
    place: tuple[str, StorageConfig],
) -> None:
    storage = open_storage(*place)
    written = {"a": shards(storage, 0), "b": shards(storage, 10)}  # both at once, under the same numbers
    publish(storage, written["b"], accounted(written["b"]))
    standing = {item.path: item.version for item in storage.list() if "nv-meta" not in item.path}
    late = shards(storage, 0)
    with pytest.raises(RunError, match="already holds another dataset"):
        publish(storage, late, accounted(late))
    assert standing.items() <= {item.path: item.version for item in storage.list()}.items()
    # What the second one left is found, and goes with the next change.
    publish(storage, written["b"], accounted(written["b"]), read_manifest(storage))
    assert verify(storage).problems == []
    assert open_dataset(*place).index.num_rows == 2


def test_two_changes_at_once_never_share_a_table(place: tuple[str, StorageConfig]) -> None:
    storage = open_storage(*place)
    begun = shards(storage, 0)
    before = publish(storage, begun, accounted(begun))
    late = [*begun, write_shard(storage, 2, [make_sample(20)])]

    class Stopped(Exception):
        pass

    def stop(*_: object) -> bool:
        raise Stopped

    slow = open_storage(*place)
    object.__setattr__(slow, "replace", stop)  # killed before its manifest, its tables written
    with pytest.raises(Stopped):
        publish(slow, late, accounted(late), before)
    other = [*begun, write_shard(storage, 2, [make_sample(30)])]
    publish(storage, other, accounted(other), before)
    assert verify(storage).problems == []
    with pytest.raises(RunError, match="another writer"):
        publish(storage, late, accounted(late), before)
    assert verify(storage).problems == []
