"""Block reader: a seekable file over a remote object, read by few large requests."""

import io
import os
import tempfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Protocol

from reelweave.loader.errors import MachineError, RunError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEPT = 3
"""Number of blocks in memory, since a demuxer jumps between the index, the video and the audio."""


class WholeCheck(Protocol):
    """Running comparison of an object's bytes with a checksum of its store.

    Attributes:
        name: name of the checksum.
        sure: False where it may be something else than a checksum.
    """

    name: str
    sure: bool

    def update(self, data: bytes) -> None:
        """Take the next bytes of the object."""

    def agrees(self) -> bool:
        """Return whether the bytes so far are the object."""


class BlockReader(io.RawIOBase):
    """Seekable reader in aligned blocks, with the last few blocks in memory.

    A source is read three times: for its hash, its scan and its cuts. Blocks evicted from memory lie in an unnamed
    sparse file of the temporary folder, which vanishes with the reader, however the process ends.

    Args:
        fetch: ``fetch(start, length)`` returns these bytes, fewer at the end of the object.
        size: size of the object in bytes.
        block_size: size of a block in bytes.
        cache_bytes: maximum disk space; blocks beyond it, or on a full disk, are fetched again, and must be the same.
        check: comparison of the whole object with the checksum of its store; None without one.
        name: URI of the object, for messages.

    Attributes:
        fault: the error that ended a read, which every later read raises again; None before.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        size: int,
        block_size: int,
        cache_bytes: int = 0,
        check: WholeCheck | None = None,
        name: str = "",
    ) -> None:
        self._size = size
        self._block_size = block_size
        self._position = 0
        self._check, self._checked, self._name = check, 0, name
        # A single block stays in memory, so it needs no file.
        self._disk = _Disk(fetch, size, block_size, cache_bytes if size > block_size else 0, name)
        self._block = lru_cache(_KEPT)(self._disk.block)
        self.fault: RunError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position like a file's; positions behind the end read as empty."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if origin + offset < 0:
            raise ValueError(f"seek to {origin + offset}, before the start")
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer up to the end of the current block, and return the number of bytes."""
        if self.fault is not None:
            raise self.fault
        if self._position >= self._size:
            return 0
        try:
            return self._fill(buffer)
        except RunError as error:
            self.fault = error
            raise

    def _fill(self, buffer: "WriteableBuffer") -> int:
        index, offset = divmod(self._position, self._block_size)
        target = memoryview(buffer).cast("B")
        block = self._block(index)
        self._compare(index, block)
        part = memoryview(block)[offset : offset + len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def verify(self) -> None:
        """Read what was not read yet in order, so that all of the object was compared with its checksum.

        Raises:
            RunError: the bytes that arrived are not those of the checksum, or cannot be read.
        """
        if self._check is not None and self.fault is None:
            for index in range(self._checked, -(-self._size // self._block_size)):
                self._compare(index, self._block(index))

    def _compare(self, index: int, block: bytes) -> None:
        """Take the next block in order into the checksum, and judge it after the last one."""
        if self._check is None or index != self._checked:
            return
        self._check.update(block)
        self._checked += 1
        if self._checked * self._block_size < self._size:
            return
        check, self._check = self._check, None
        if check.agrees():
            return
        if check.sure:
            raise MachineError(
                f"{self._name} arrived with other bytes than those of its checksum ({check.name}) in the store"
            )
        for each in range(self._checked):  # fetched twice the same, its ETag is no MD5
            self._disk.fetch(each)

    def close(self) -> None:
        """Release memory and disk space."""
        self._block.cache_clear()
        self._disk.close()
        super().close()


class _Disk:
    """Blocks fetched before, in an unnamed file."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, block_size: int, cache_bytes: int, name: str
    ) -> None:
        self._fetch, self._size, self._block_size, self._name = fetch, size, block_size, name
        self._crc32: dict[int, int] = {}
        self._room = cache_bytes // block_size
        self._file: IO[bytes] | None = None
        self._kept: set[int] = set()

    def block(self, index: int) -> bytes:
        start = index * self._block_size
        length = min(self._block_size, self._size - start)
        if self._file is not None and index in self._kept:
            return os.pread(self._file.fileno(), length, start)
        data = self.fetch(index)
        if len(self._kept) < self._room and len(data) == length:
            self._keep(index, start, data)
        return data

    def fetch(self, index: int) -> bytes:
        """Fetch a block of the object.

        Raises:
            MachineError: it was fetched before, with other bytes.
        """
        start = index * self._block_size
        data = self._fetch(start, min(self._block_size, self._size - start))
        crc32 = zlib.crc32(data)
        if self._crc32.setdefault(index, crc32) != crc32:
            raise MachineError(f"{self._name} arrived with other bytes than before")
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._kept = None, set()

    def _keep(self, index: int, start: int, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="reelweave-blocks-", buffering=0)  # noqa: SIM115
            if os.pwrite(self._file.fileno(), data, start) == len(data):
                self._kept.add(index)
        except OSError:  # disk full; blocks stored so far stay usable
            self._room = 0
