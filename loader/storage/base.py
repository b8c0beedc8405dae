"""What the rest of the house may ask of a place that holds bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """One stored object.

    Attributes:
        path: relative to the storage's root, with forward slashes.
        size: bytes.
        version: changes whenever the bytes may have changed (an ETag, or a modification time).
    """

    path: str
    size: int
    version: str


class Storage(Protocol):
    """A folder or an S3 prefix. Paths are relative to ``root``; one that could leave it is a ``UsageError``.

    Every write appears whole or not at all. Reads of a missing object raise ``FileNotFoundError``;
    a fault that outlives its retries raises ``RunError`` naming the object, and one that concerns only the object
    that is read raises ``ObjectError``. Instances can be pickled
    (they are sent to Ray workers) and carry no credentials when they are.
    """

    @property
    def root(self) -> str:
        """The URI this storage was opened with, without a trailing slash."""

    def uri(self, path: str) -> str:
        """The full URI of ``path``, for messages and for other programs."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects but the lease whose path starts with ``prefix``, by path; nothing when there are none."""

    def stat(self, path: str) -> ObjectInfo | None:
        """The object's size and version, or None when it does not exist."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes ``[start, start + length)`` of one version, or to the end; fewer when it ends before."""

    def open(self, path: str) -> BinaryIO:
        """A seekable reader of one version of the object, with bounded memory whatever its size."""

    def write(self, path: str, data: bytes) -> None:
        """Replaces the object."""

    def write_file(self, path: str, source: Path) -> None:
        """Replaces the object by the content of a local file, in parts when it is large."""

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:
        """Replaces the object by chunks in a row, ``size`` bytes together, without holding all of them."""

    def create(self, path: str, data: bytes) -> bool:
        """Writes the object only if it does not exist yet; False when it does."""

    def replace(self, path: str, data: bytes, version: str) -> bool:
        """Replaces the object only if it still has this version; False when somebody else changed it."""

    def delete(self, path: str) -> None:
        """Removes the object; no error when it is already gone."""

    def delete_tree(self, prefix: str) -> None:
        """Removes every object whose path starts with ``prefix``."""

    def sweep(self) -> None:
        """Removes what killed writers left unfinished. Only for a place that nobody else is writing to."""

    def drop_versions(self) -> bool:
        """Remove former content that the place itself keeps: older versions of objects, and of deleted ones.

        False when the place lets nobody look for them, or keeps them all the same.
        """
