"""Leases: one writer at a time per output, from before the first shared write to the end.

A file lock leases a local folder; the kernel releases it when the process ends. An object that its holder renews leases
any other storage; other writers take over an object that is not renewed for a while. Readers need no lease.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.leases.fenced import Fence, FencedStorage, remove_fence
from reelweave.loader.storage.leases.file_lease import FileLease
from reelweave.loader.storage.leases.holder import LeaseHolder
from reelweave.loader.storage.leases.timed_lease import TimedLease
from reelweave.loader.storage.local import LocalStorage


class Lease(Protocol):
    """Exclusive right to write to a storage, until release or takeover."""

    def acquire(self) -> None:
        """Take the lease, or fail if it is held.

        Raises:
            RunError: another process holds it, or the storage supports no lease.
        """

    def release(self) -> None:
        """Release the lease, unless it was lost."""


@contextmanager
def hold_lease(storage: Storage, command: str) -> Iterator[Storage]:
    """Hold the lease of a storage, and yield the storage for writing.

    Every write through the yielded storage, from any process it is sent to, first checks that the lease is still held.

    Args:
        storage: storage to lease.
        command: command that runs, for messages of other processes.

    Raises:
        RunError: another process holds the lease, named in the message; or the lease was lost.
    """
    storage, holder = remove_fence(storage), LeaseHolder.here(command)
    lease = _lease(storage, holder)
    lease.acquire()
    try:
        yield FencedStorage(storage, Fence(storage, holder.id))
    finally:
        lease.release()


def _lease(storage: Storage, holder: LeaseHolder) -> Lease:
    if isinstance(storage, LocalStorage):
        return FileLease(storage, holder)
    from reelweave.loader.storage.s3.storage import S3Storage

    config = storage.config if isinstance(storage, S3Storage) else StorageConfig()
    return TimedLease(storage, holder, config.lease_s)
