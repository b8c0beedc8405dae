"""Fencing: a storage that refuses writes once another process has taken over the lease."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import ObjectInfo, Storage
from reelweave.loader.storage.leases.holder import read_holder
from reelweave.loader.storage.leases.timed_lease import elapsed_s

_EVERY_S = 2.0
"""Most seconds between two checks. A lease that ends by time is checked at least twice while it lasts."""


@dataclass
class Fence:
    """Check before each write that the lease still names its holder; picklable, for workers of a run.

    Attributes:
        storage: leased storage.
        holder_id: id of the lease's holder.
    """

    storage: Storage
    holder_id: str
    _checked_at: float | None = field(default=None, init=False, repr=False, compare=False)
    _every_s: float = field(default=_EVERY_S, init=False, repr=False, compare=False)

    def check(self, at_once: bool = False) -> None:
        """Read the lease, unless it was read just now.

        Args:
            at_once: True to read it in any case.

        Raises:
            RunError: another process has taken over.
        """
        now = elapsed_s()
        if not at_once and self._checked_at is not None and now - self._checked_at < self._every_s:
            return
        holder = read_holder(self.storage)
        if holder is None or holder.id != self.holder_id:
            now_by = "" if holder is None else f"; it is now held by {holder}"
            raise RunError(
                f"this run was stopped or cut off for too long and has lost its lease of {self.storage.root}{now_by};"
                " what others wrote there was left alone: run the same command again when they have ended"
            )
        self._checked_at = now
        # Nobody takes over within the rest of a lease that was just ours, at most one renewal after it was written.
        self._every_s = min(_EVERY_S, holder.lasts_s / 2) if holder.lasts_s else _EVERY_S

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checked_at": None}


@dataclass(frozen=True)
class FencedStorage:
    """Storage whose writes check a fence first; see `Storage` for the methods."""

    inner: Storage
    fence: Fence

    @property
    def root(self) -> str:
        return self.inner.root

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def stat(self, path: str) -> ObjectInfo | None:
        return self.inner.stat(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(path, start, length)

    def open(self, path: str) -> BinaryIO:
        return self.inner.open(path)

    def write(self, path: str, data: bytes) -> None:
        self.fence.check()
        self.inner.write(path, data)

    def write_file(self, path: str, source: Path) -> None:
        self.fence.check()
        self.inner.write_file(path, source)

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:
        self.fence.check()
        self.inner.write_chunks(path, chunks, size)

    def create(self, path: str, data: bytes) -> bool:
        self.fence.check(at_once=True)
        return self.inner.create(path, data)

    def create_file(self, path: str, source: Path) -> bool:
        self.fence.check(at_once=True)
        return self.inner.create_file(path, source)

    def replace(self, path: str, data: bytes, version: str) -> bool:
        self.fence.check(at_once=True)
        return self.inner.replace(path, data, version)

    def delete(self, path: str) -> None:
        self.fence.check()
        self.inner.delete(path)

    def delete_many(self, paths: Iterable[str]) -> None:
        self.fence.check()
        self.inner.delete_many(paths)

    def delete_tree(self, prefix: str) -> None:
        self.fence.check()
        self.inner.delete_tree(prefix)

    def sweep(self) -> None:
        self.fence.check(at_once=True)
        self.inner.sweep()

    def drop_versions(self) -> bool:
        self.fence.check(at_once=True)
        return self.inner.drop_versions()


def remove_fence(storage: Storage) -> Storage:
    """Return the storage without its fence, for reading."""
    return storage.inner if isinstance(storage, FencedStorage) else storage
