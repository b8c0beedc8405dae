"""Block reader: a seekable file over a remote object, read by few large requests."""

import io
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEPT = 3
"""Number of blocks in memory, since a demuxer jumps between the index, the video and the audio."""


class BlockReader(io.RawIOBase):
    """Seekable reader in aligned blocks, with the last few blocks in memory.

    A source is read three times: for its hash, its scan and its cuts. Blocks evicted from memory lie in an unnamed
    sparse file of the temporary folder, which vanishes with the reader, however the process ends.

    Args:
        fetch: ``fetch(start, length)`` returns these bytes, fewer at the end of the object.
        size: size of the object in bytes.
        block_size: size of a block in bytes.
        cache_bytes: maximum disk space; blocks beyond it, or on a full disk, are fetched again.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, block_size: int, cache_bytes: int = 0
    ) -> None:
        self._size = size
        self._block_size = block_size
        self._position = 0
        # A single block stays in memory, so it needs no file.
        self._disk = _Disk(fetch, size, block_size, cache_bytes if size > block_size else 0)
        self._block = lru_cache(_KEPT)(self._disk.block)

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
        if self._position >= self._size:
            return 0
        number, offset = divmod(self._position, self._block_size)
        target = memoryview(buffer).cast("B")
        part = memoryview(self._block(number))[offset : offset + len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        """Release memory and disk space."""
        self._block.cache_clear()
        self._disk.close()
        super().close()


class _Disk:
    """Blocks fetched before, in an unnamed file."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, block_size: int, cache_bytes: int
    ) -> None:
        self._fetch, self._size, self._block_size = fetch, size, block_size
        self._room = cache_bytes // block_size
        self._file: IO[bytes] | None = None
        self._kept: set[int] = set()

    def block(self, number: int) -> bytes:
        start = number * self._block_size
        length = min(self._block_size, self._size - start)
        if self._file is not None and number in self._kept:
            return os.pread(self._file.fileno(), length, start)
        data = self._fetch(start, length)
        if len(self._kept) < self._room and len(data) == length:
            self._keep(number, start, data)
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._kept = None, set()

    def _keep(self, number: int, start: int, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="reelweave-blocks-", buffering=0)  # noqa: SIM115
            if os.pwrite(self._file.fileno(), data, start) == len(data):
                self._kept.add(number)
        except OSError:  # disk full; blocks stored so far stay usable
            self._room = 0
