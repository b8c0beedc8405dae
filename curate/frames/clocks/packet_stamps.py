"""Stamps of packets as players take them, where FFmpeg hands out what a file holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from av.packet import Packet

from reelweave.curate.frames.clocks.laps import without_laps
from reelweave.curate.frames.clocks.ogg_begin import with_signs

_SHORTEST_S, _USUAL_S = Fraction(1, 100), Fraction(1, 10)
"""Delay up to which browsers take that of a GIF as none, and what they take in its place."""


def mended_stamps(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, with stamps changed in place: of FLV behind a lap, GIF with delays of up to 10 ms, Ogg before 0.

    Args:
        packets: Packets in the container's order.
        container: Name of the container in FFmpeg.
    """
    if container == "gif":
        yield from _with_usual_delays(packets)
    else:
        yield from without_laps(with_signs(packets, container), container)


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
