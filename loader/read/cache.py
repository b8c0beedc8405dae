"""A disk cache of bytes that are slow to get, shared by all processes of a machine.

Whatever the disk does, a run goes on: what cannot be kept, or is damaged, is loaded again.
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

from pydantic import BaseModel, Field, field_validator

from loader.base.cache_space import CacheSpace, not_a_link, on_disk

_HEAD = struct.Struct("<QI")
_PAUSE_S = 60.0

_log = logging.getLogger(__name__)


class CacheConfig(BaseModel, frozen=True, extra="forbid"):
    """A disk cache of what was read from S3."""

    folder: Path = Field(description="on a disk of this machine; all its ranks may use the same one")
    max_gib: float = Field(gt=0, allow_inf_nan=False, description="most disk space the cache takes, in GiB")

    @property
    def max_bytes(self) -> int:
        """The same in bytes."""
        return int(self.max_gib * 2**30)

    @field_validator("folder", mode="before")
    @classmethod
    def _refuse_uris(cls, folder: Any) -> Any:
        if isinstance(folder, str) and (not folder or "://" in folder or "\0" in folder):
            raise ValueError("give a local folder")
        return folder


class DiskCache:
    """Bytes by name, the least recently used of which leave when space runs out.

    Threads and processes may share a folder, each through an object of its own or a copy of one; a use counts for
    all of them and survives restarts. Two that miss the same name at the same time both load it. Nothing is done
    before the first use.

    Args:
        folder: made when it is not there; the cache lies in a sub-folder and touches nothing beside it.
        max_bytes: most disk space all entries together take, at any moment.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self._space = CacheSpace(Path(folder).absolute(), max_bytes)
        self._paused_until = 0.0
        self._warned = False

    def get(self, name: str, load: Callable[[], bytes]) -> bytes:
        """The entry, or what ``load`` returns, which is kept. Raises what ``load`` raises."""
        data = self.find(name)
        if data is None:
            data = load()
            self.keep(name, data)
        return data

    def find(self, name: str) -> bytes | None:
        """The entry; None when there is none or it is damaged."""
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
        """Makes it an entry, if the disk and the limit allow."""
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
        """Forgets the entry, if there is one and the disk allows."""
        with suppress(OSError):
            self._space.remove(self._path(name))

    def _path(self, name: str) -> str:
        return self._space.path(hashlib.blake2b(_encoded(name), digest_size=20).digest())

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        if not self._warned:
            self._warned = True
            _log.warning(
                "nothing more is kept in the cache %s for now: %s; the run goes on without",
                self._space.folder,
                error.strerror,
            )


def _encoded(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def _head(name: str, data: bytes) -> bytes:
    return _HEAD.pack(len(data), zlib.crc32(data, zlib.crc32(_encoded(name))))


def _use(handle: int) -> None:
    # The time that the system itself would set moves in steps of milliseconds.
    now = time.time_ns()
    os.utime(handle, ns=(now, now))
