"""View of a transport stream (TS) without packets that are sent twice, which knows of what packets are lost."""

import io
from typing import BinaryIO, cast

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.loader.dataset.samples.frames.ts_packets import BLOCK_ROWS, SYNC, TsPackets, layout_of

_HEAD_BYTES = 2048


class TsFile(io.RawIOBase):
    """View of a file of TS, with the same offsets.

    Args:
        file: The file.
        size: Bytes from a packet to the next one.
        begin: Offset of the first packet.
    """

    def __init__(self, file: BinaryIO, size: int, begin: int) -> None:
        super().__init__()
        self._file, self._size, self._begin = file, size, begin
        self._packets = TsPackets(size)
        self._position = file.tell()
        self._block, self._block_at = b"", 0
        self._next = begin  # where the next block begins that goes on with the last one

    def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all that are left."""
        if size < 0:
            parts = []
            while part := self.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
        if self._position < self._begin:
            self._file.seek(self._position)
            data = self._file.read(min(size, self._begin - self._position))
        else:
            if not self._block_at <= self._position < self._block_at + len(self._block):
                self._load()
            begin = self._position - self._block_at
            data = self._block[begin : begin + size]
        self._position += len(data)
        return data

    def _load(self) -> None:
        """Load the block with the place."""
        step = self._size * BLOCK_ROWS
        if not self._next <= self._position < self._next + step:
            # The packets before tell whether the first ones come again.
            block_begin = self._begin + max(0, (self._position - self._begin) // step - 1) * step
            self._packets.forget()
            self._take(block_begin)
        while self._position >= self._next and self._take(self._next):
            pass

    def _take(self, at: int) -> bool:
        """Load the block at an offset of a packet, and return whether there is any."""
        self._file.seek(at)
        block = bytearray(self._file.read(self._size * BLOCK_ROWS))
        taken = self._packets.take(memoryview(block), at)
        if taken < len(block):  # bytes are missing or wrong there; packets begin somewhere behind them
            unread = bytes(block[taken:])
            layout = layout_of(unread[1:])
            taken += len(unread) if layout is None or layout[0] != self._size else 1 + layout[1]
        self._block, self._block_at, self._next = bytes(block[:taken]), at, at + taken
        return bool(block)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, in bytes from the begin, the position or the end, and return it."""
        if whence == io.SEEK_END:
            self._position = self._file.seek(offset, io.SEEK_END)
        else:
            self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seekable(self) -> bool:
        """Return that the position can be set."""
        return True

    def readable(self) -> bool:
        """Return that bytes can be read."""
        return True

    def is_damaged(self, offset: int) -> bool:
        """Return whether packets are lost of the unit that begins at an offset, as far as the file was read."""
        return offset in self._packets.damaged


def transport(file: BinaryIO) -> BinaryIO:
    """Return a view of a file of TS without packets that come twice, and other files as they are."""
    position = file.tell()
    head = file.read(_HEAD_BYTES)
    file.seek(position)
    layout = layout_of(head) if SYNC in head[:_HEAD_BYTES] else None
    return file if layout is None else cast(BinaryIO, TsFile(file, layout[0], position + layout[1]))


class TransportChecks:
    """Watch of the packets of one stream of TS, whose counters tell what is lost; of other containers it tells nothing.

    Args:
        stream: Opened stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        file = getattr(getattr(stream.container, "file", None), "file", None)
        self._file = file if isinstance(file, TsFile) else None
        self._unit = -1
        self._key: int | None = None  # stamp of the key frame that was read last
        # Stamps of damaged packets, and of the key frames before.
        self._hurt, self._keys = set[int | None](), set[int | None]()

    def is_damaged(self, packet: "Packet[VideoStream]") -> bool:
        """Return whether packets of TS are lost of the unit that holds this packet."""
        if self._file is None or not packet.size:
            return False
        if packet.pos is not None and packet.pos >= 0:
            self._unit = packet.pos
        if packet.is_keyframe:
            self._key = packet.pts
        is_damaged = self._file.is_damaged(self._unit)
        if is_damaged and packet.pts is not None:
            self._hurt.add(packet.pts)
            self._keys.add(self._key)
        return is_damaged

    def is_hurt(self, frame: VideoFrame) -> bool:
        """Return whether a frame is of a damaged packet."""
        return frame.pts in self._hurt

    def may_mend(self, frame: VideoFrame) -> bool:
        """Return whether pictures are right from a key frame on, which may be shown after damage that follows it."""
        return frame.pts is None or frame.pts not in self._keys
