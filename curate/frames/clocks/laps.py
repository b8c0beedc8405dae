"""Stamps of FLV that pass 2^31 milliseconds, as those of recordings of servers that run for weeks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from av.packet import Packet

_LAP = 1 << 31
"""Ticks after which writers begin at 0 again; FFmpeg takes it for a lap of twice as many."""


def without_laps(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, those of FLV with stamps that go on where the clock began anew.

    Around that place pictures of both laps are shown by turns, so that no stamp of a frame tells the lap of its packet.

    Args:
        packets: Packets in the container's order; stamps are changed in place.
        container: Name of the container in FFmpeg.
    """
    if container != "flv":
        yield from packets
        return
    last: dict[int, int] = {}
    laps: dict[int, int] = {}
    for packet in packets:
        if packet.size and packet.dts is not None:  # the packet at the end has a stream, but no index
            stream = packet.stream.index
            laps[stream] = laps.get(stream, 0) + round((packet.dts - last.get(stream, packet.dts)) / _LAP)
            last[stream] = packet.dts
            packet.dts -= laps[stream] * _LAP
            if packet.pts is not None:
                packet.pts -= laps[stream] * _LAP
        yield packet
