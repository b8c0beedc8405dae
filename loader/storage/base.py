"""Protocol of all storages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """Metadata of one stored object.

    Attributes:
        path: path relative to the storage's root, with forward slashes.
        size: size in bytes.
        version: ETag or modification time, which changes whenever the bytes may have changed.
    """

    path: str
    size: int
    version: str


class Storage(Protocol):
    """Folder or S3 prefix; paths are relative to ``root``, and a path that could leave it is a ``UsageError``.

    Every write appears whole or not at all. Reads of a missing object raise ``FileNotFoundError``. A fault that
    outlives its retries raises ``RunError`` naming the object, or ``ObjectError`` if it concerns only the object being
    read. Instances are picklable, since they are sent to Ray workers, and do not carry credentials.
    """

    @property
    def root(self) -> str:
        """URI that this storage was opened with, without a trailing slash."""

    def uri(self, path: str) -> str:
        """Return the full URI of ``path``, for messages and other programs."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects except the lease whose path starts with ``prefix``, sorted by path."""

    def stat(self, path: str) -> ObjectInfo | None:
        """Return the object's size and version, or None if it does not exist."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes ``[start, start + length)`` of one version, or to the end; fewer if it ends before."""

    def open(self, path: str) -> BinaryIO:
        """Open one version of the object as a seekable reader with bounded memory."""

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the object atomically."""

    def write_file(self, path: str, source: Path) -> None:
        """Replace the object by the content of a local file; large files are uploaded in parts."""

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:
        """Replace the object by consecutive chunks of ``size`` bytes in total, without holding all of them."""

    def create(self, path: str, data: bytes) -> bool:
        """Write the object only if it does not exist yet; return False if it does."""

    def create_file(self, path: str, source: Path) -> bool:
        """Write the content of a local file only if the object does not exist yet; return False if it does."""

    def replace(self, path: str, data: bytes, version: str) -> bool:
        """Replace the object only if it still has this version; return False if another writer changed it."""

    def delete(self, path: str) -> None:
        """Remove the object; a missing object is no error."""

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects; missing ones are no error."""

    def delete_tree(self, prefix: str) -> None:
        """Remove every object whose path starts with ``prefix``."""

    def sweep(self) -> None:
        """Remove unfinished writes of killed processes; only for a storage without other writers."""

    def drop_versions(self) -> bool:
        """Remove earlier content that the storage keeps itself: old versions of objects, and of deleted ones.

        Returns False if versions cannot be listed, or remain.
        """
