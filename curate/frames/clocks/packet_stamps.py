"""Stamps of packets as players take them, where FFmpeg hands out what a file holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from av.packet import Packet

from reelweave.curate.frames.clocks.laps import without_laps

_SHORTEST_S, _USUAL_S = Fraction(1, 100), Fraction(1, 10)
"""Delay up to which browsers take that of a GIF as none, and what they take in its place."""


def mended_stamps(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, with stamps changed in place: of FLV behind a lap, and of GIF with delays of up to 10 ms.

    Args:
        packets: Packets in the container's order.
        container: Name of the container in FFmpeg.
    """
    yield from _with_usual_delays(packets) if container == "gif" else without_laps(packets, container)


def _with_usual_delays(packets: Iterable[Packet[Any]]) -> Iterator[Packet[Any]]:
    later = 0
    for packet in packets:
        if packet.size and packet.pts is not None and packet.time_base:
            packet.pts += later
            packet.dts = packet.pts
            delay = packet.duration or 0
            if delay * packet.time_base <= _SHORTEST_S:
                usual = int(_USUAL_S / packet.time_base)
                later += usual - delay
                packet.duration = usual
        yield packet
