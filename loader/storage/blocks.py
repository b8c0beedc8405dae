"""Seekable reading of a remote object by a few large requests."""

import io
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEPT = 3
"""Blocks in memory: a demuxer jumps between the index at one end, the video and the audio."""


class BlockReader(io.RawIOBase):
    """An object read in aligned blocks, the last few of which stay in memory.

    A source is read three times: its hash, its scan, its cuts. Blocks that leave memory lie in a sparse file
    of the temporary folder, which has no name and is gone with the reader however the process ends.

    Args:
        fetch: ``fetch(start, length)`` returns these bytes, fewer at the end of the object.
        size: of the object, bytes.
        block_size: bytes.
        cache_bytes: most disk space; blocks beyond it, and all when the disk is full, are fetched again.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, block_size: int, cache_bytes: int = 0
    ) -> None:
        self._size = size
        self._block_size = block_size
        self._position = 0
        # A single block stays in memory anyway.
        self._disk = _Disk(fetch, size, block_size, cache_bytes if size > block_size else 0)
        self._block = lru_cache(_KEPT)(self._disk.block)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of a file; a position behind the end reads as empty."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if origin + offset < 0:
            raise ValueError(f"seek to {origin + offset}, before the start")
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fills the buffer up to the end of the block it starts in."""
        if self._position >= self._size:
            return 0
        number, offset = divmod(self._position, self._block_size)
        target = memoryview(buffer).cast("B")
        part = memoryview(self._block(number))[offset : offset + len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        """Gives memory and disk space back."""
        self._block.cache_clear()
        self._disk.close()
        super().close()


class _Disk:
    """Blocks that were fetched once, in a file without a name."""

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
        except OSError:  # no space left; what is there stays useful
            self._room = 0
