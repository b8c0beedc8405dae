"""Delays of GIF as browsers take them."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.packet import Packet

_SHORTEST_S, _USUAL_S = Fraction(1, 100), Fraction(1, 10)
"""Delay up to which browsers take that of a GIF as none, and what they take in its place."""


def with_usual_delays(packets: "Iterable[Packet[Any]]", container: str) -> "Iterator[Packet[Any]]":
    """Yield packets; those of a GIF with delays of up to 10 ms last 100 ms, and stamps are changed in place.

    Args:
        packets: packets in the container's order.
        container: name of the container in FFmpeg.
    """
    later = 0
    for packet in packets:
        if container == "gif" and packet.size and packet.pts is not None and packet.time_base:
            packet.pts += later
            packet.dts = packet.pts
            delay = packet.duration or 0
            if delay * packet.time_base <= _SHORTEST_S:
                usual = int(_USUAL_S / packet.time_base)
                later += usual - delay
                packet.duration = usual
        yield packet
