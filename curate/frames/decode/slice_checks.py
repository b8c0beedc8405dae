"""Checksums in packets of FFV1, which FFmpeg looks at and tells nobody of."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from av.packet import Packet
from av.video.stream import VideoStream

_FOOTER = 8  # of a slice with a checksum: its size (3), a status, the checksum (4); RFC 9043, 4.9
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL = 0xFFFFFFFF


class SliceChecks:
    """Checks of the packets of one stream.

    Whether slices have checksums stands in a header that is coded itself. So the first packet whose checksums are right
    tells it, as chance has one of 2^32.

    Args:
        stream: Video stream that is decoded.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._is_ffv1 = stream.codec_context.codec.canonical_name == "ffv1"
        self._has_checksums = False

    def is_damaged(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet holds a slice with a wrong checksum; False where there are no checksums."""
        if not self._is_ffv1 or not packet.size:
            return False
        data = bytes(packet)
        is_right = all(map(_is_right, _slices(data)))
        self._has_checksums |= is_right
        return self._has_checksums and not is_right


def _slices(data: bytes) -> Iterator[bytes]:
    """Yield the slices of a packet, the last one first; an empty one where their sizes do not add up."""
    end = len(data)
    while end > 0:
        begin = end - _FOOTER - int.from_bytes(data[max(0, end - _FOOTER) :][:3], "big")
        yield data[begin:end] if 0 <= begin < end else b""
        end = begin


def _is_right(part: bytes) -> bool:
    """Return whether a slice with its checksum has the remainder 0: CRC-32 from the highest bit, from 0."""
    # zlib begins with the lowest bit, and inverts before and after.
    return bool(part) and zlib.crc32(part.translate(_REVERSED), _ALL) == _ALL
