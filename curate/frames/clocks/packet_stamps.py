"""Stamps of packets as players take them, where FFmpeg hands out what a file holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from av.packet import Packet

from reelweave.curate.frames.clocks.laps import without_laps
from reelweave.curate.frames.clocks.ogg_begin import with_signs
from reelweave.loader.dataset.samples.frames.gif_delays import with_usual_delays


def mended_stamps(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, with stamps changed in place: of FLV behind a lap, GIF with delays of up to 10 ms, Ogg before 0.

    Args:
        packets: Packets in the container's order.
        container: Name of the container in FFmpeg.
    """
    if container == "gif":
        yield from with_usual_delays(packets, container)
    else:
        yield from without_laps(with_signs(packets, container), container)
