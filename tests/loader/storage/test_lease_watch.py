"""Whether somebody writes to an output is seen without a lease of one's own."""

from dataclasses import replace
from pathlib import Path

from reelweave.loader.storage import LeaseWatch, Storage, hold_lease, open_storage
from reelweave.loader.storage.leases.holder import LeaseHolder
from reelweave.loader.storage.names import LEASE


def test_a_holder_on_this_machine_is_seen_at_once(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    watch = LeaseWatch(storage)
    assert watch.look().is_there is False
    with hold_lease(storage, "a test"):
        writer = watch.look()
        assert writer.is_there is True
        assert writer.holder is not None
        assert writer.holder.command == "a test"
    assert watch.look().is_there is False


def test_a_lease_that_a_killed_process_left_is_nobodys(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    here = LeaseHolder.here("a test")
    host, _, began = here.process.rpartition(" ")
    leave(storage, replace(here, process=f"{host} {int(began) - 1}"))
    assert LeaseWatch(storage).look().is_there is False


def test_a_lease_of_another_machine_is_watched_by_this_clock(tmp_path: Path) -> None:
    """As on S3, where its holder renews it."""
    storage, now = open_storage(tmp_path), [0.0]
    watch = LeaseWatch(storage, lambda: now[0])
    holder = replace(LeaseHolder.here("a test"), process="another boot 1", lasts_s=60.0)
    seen = []
    for now[0], renews in (
        (0.0, True),
        (15.0, True),
        (70.0, False),
        (75.0, False),
        (75.1, False),
        (80.0, True),
    ):
        holder = holder.renew() if renews else holder
        leave(storage, holder)
        seen.append(watch.look().is_there)
    assert seen == [None, True, None, None, False, True]


def test_a_lock_that_another_machine_holds_never_runs_out(tmp_path: Path) -> None:
    storage, now = open_storage(tmp_path), [0.0]
    watch = LeaseWatch(storage, lambda: now[0])
    leave(storage, replace(LeaseHolder.here("a test"), process="another boot 1"))
    assert [watch.look().is_there for now[0] in (0.0, 1e6)] == [None, None]


def test_a_damaged_lease_may_be_somebodys(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.write(LEASE, b"{")
    assert LeaseWatch(storage).look().is_there is None


def leave(storage: Storage, holder: LeaseHolder) -> None:
    storage.write(LEASE, holder.to_bytes())
