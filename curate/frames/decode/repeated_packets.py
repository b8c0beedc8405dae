"""Packets that a file holds a second time soon behind the first: a cluster or segment that was written again."""

from __future__ import annotations

import zlib
from collections import deque

from av.packet import Packet
from av.video.stream import VideoStream

_RECENT = 64  # packets, of which repeats are known
_COMPARED = 1024  # bytes of each that are compared, beside its size and stamp
_MOST = 100_000


class RepeatedPackets:
    """Stamps of the packets of pictures that came a second time.

    Attributes:
        stamps: The stamps, in ticks.
    """

    def __init__(self) -> None:
        self.stamps: set[int] = set()
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=_RECENT)

    def take(self, packet: Packet[VideoStream]) -> None:
        """Note a packet in the container's order."""
        if packet.pts is None:
            return
        entry = packet.pts, packet.size, zlib.crc32(memoryview(packet)[:_COMPARED])
        if entry in self._recent and len(self.stamps) < _MOST:
            self.stamps.add(packet.pts)
        self._recent.append(entry)
