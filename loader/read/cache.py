"""Disk cache for slow reads, shared by all processes of a machine.

Faults of the disk never stop a run: entries that are damaged or could not be stored are loaded again.
"""

import hashlib
import io
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field, field_validator

from reelweave.loader.base.shared.cache_space import CacheSpace, not_a_link, on_disk
from reelweave.loader.settings import Settings

_HEAD = struct.Struct("<QI")
_PAUSE_S = 60.0

_log = logging.getLogger(__name__)


class CacheConfig(Settings):
    """Disk cache of samples read from S3."""

    folder: Path = Field(description="folder on a local disk; all ranks of the machine may share it")
    max_gib: float = Field(gt=0, description="maximum size of the cache in GiB")

    @property
    def max_bytes(self) -> int:
        """Maximum size of the cache in bytes."""
        return int(self.max_gib * 2**30)

    @field_validator("folder", mode="before")
    @classmethod
    def _refuse_uris(cls, folder: Any) -> Any:
        if isinstance(folder, str) and (not folder or "://" in folder or "\0" in folder):
            raise ValueError("give a local folder")
        return folder


class DiskCache:
    """LRU cache of bytes by name.

    Threads and processes may share a folder, each through its own object or a copy. Uses count for all of them and
    survive restarts. Two concurrent misses of one name both load it. The folder is created on first use.

    Args:
        folder: parent folder, created if missing; the cache uses one subfolder of it.
        max_bytes: maximum disk space of all entries together, at any moment.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self._space = CacheSpace(Path(folder).absolute(), max_bytes)
        self._paused_until = 0.0
        self._warned = False

    def get(self, name: str, load: Callable[[], bytes]) -> bytes:
        """Return the entry; on a miss call ``load``, store its result and return it.

        Raises:
            Exception: any error of ``load``.
        """
        data = self.find(name)
        if data is None:
            data = load()
            self.keep(name, data)
        return data

    def find(self, name: str) -> bytes | None:
        """Return the entry; None if it is missing or damaged."""
        try:
            with io.FileIO(self._path(name), opener=not_a_link) as file:
                head, data = file.read(_HEAD.size), file.read()
                if head != _head(name, data):
                    return None
                with suppress(OSError):  # a folder that cannot be written can still be read
                    _use(file.fileno())
                return data
        except OSError:
            return None

    def keep(self, name: str, data: bytes) -> None:
        """Store an entry, if the disk and the limit allow."""
        size = _HEAD.size + len(data)
        if on_disk(size) > self._space.max_bytes or time.monotonic() < self._paused_until:
            return

        def fill(file: BinaryIO) -> None:
            file.write(_head(name, data))
            file.write(data)
            file.flush()
            _use(file.fileno())

        try:
            self._space.place(self._path(name), size, fill)
        except OSError as error:
            self._pause(error)

    def drop(self, name: str) -> None:
        """Remove the entry, if it exists and the disk allows."""
        with suppress(OSError):
            self._space.remove(self._path(name))

    def _path(self, name: str) -> str:
        return self._space.path(hashlib.blake2b(_encode_name(name), digest_size=20).digest())

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        if not self._warned:
            self._warned = True
            _log.warning(
                "nothing more is kept in the cache %s for now: %s; the run goes on without",
                self._space.folder,
                error.strerror,
            )


def _encode_name(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def _head(name: str, data: bytes) -> bytes:
    return _HEAD.pack(len(data), zlib.crc32(data, zlib.crc32(_encode_name(name))))


def _use(handle: int) -> None:
    # An explicit time, because the kernel's own timestamps advance in milliseconds.
    now = time.time_ns()
    os.utime(handle, ns=(now, now))
