"""One writer at a time: an output is leased before the first shared write, and given back at the end.

A local folder is leased by a file lock, which the kernel releases when the process ends. Everything else is leased by
an object that its holder renews; one that is not renewed for a while is taken over. Readers need no lease.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from loader.storage.base import Storage
from loader.storage.config import StorageConfig
from loader.storage.leases.fenced import Fence, FencedStorage, unfenced
from loader.storage.leases.file_lease import FileLease
from loader.storage.leases.holder import LeaseHolder
from loader.storage.leases.timed_lease import TimedLease
from loader.storage.local import LocalStorage


class Lease(Protocol):
    """The right to write to a place, until it is given back or somebody else takes it over."""

    def acquire(self) -> None:
        """Take it.

        Raises:
            RunError: somebody else holds it, or the place knows no way to hold one.
        """

    def release(self) -> None:
        """Give it back, unless it was lost."""


@contextmanager
def leased(storage: Storage, command: str) -> Iterator[Storage]:
    """Hold the lease of a place, and yield the place as its holder writes to it.

    Every write through the yielded storage, from any process it is sent to, first makes sure that the lease is
    still held.

    Args:
        storage: The place.
        command: What runs, for those who come too late.

    Raises:
        RunError: somebody else holds it, which the message names; or it was lost in the meantime.
    """
    storage, holder = unfenced(storage), LeaseHolder.here(command)
    lease = _lease(storage, holder)
    lease.acquire()
    try:
        yield FencedStorage(storage, Fence(storage, holder.id))
    finally:
        lease.release()


def _lease(storage: Storage, holder: LeaseHolder) -> Lease:
    if isinstance(storage, LocalStorage):
        return FileLease(storage, holder)
    from loader.storage.s3 import S3Storage

    config = storage.config if isinstance(storage, S3Storage) else StorageConfig()
    return TimedLease(storage, holder, config.lease_s)
