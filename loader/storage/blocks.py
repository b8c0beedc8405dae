"""Seekable reading of a remote object by a few large requests."""

import io
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEPT = 3
"""Blocks in memory: a demuxer jumps between the index at one end, the video and the audio."""


class BlockReader(io.RawIOBase):
    """An object read in aligned blocks, the last few of which stay in memory.

    Args:
        fetch: ``fetch(start, length)`` returns these bytes, fewer at the end of the object.
        size: of the object, bytes.
        block_size: bytes.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, block_size: int) -> None:
        self._block = lru_cache(_KEPT)(lambda number: fetch(number * block_size, block_size))
        self._size = size
        self._block_size = block_size
        self._position = 0

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
