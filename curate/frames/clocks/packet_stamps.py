"""Stamps of packets as players take them, where FFmpeg hands out what a file holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.frames.clocks.laps import without_laps
from reelweave.curate.frames.clocks.moved_begin import sound_shift_s
from reelweave.curate.frames.clocks.ogg_begin import with_signs
from reelweave.loader.dataset.samples.frames.gif_delays import with_usual_delays


def mended_stamps(packets: Iterable[Packet[Any]], video: VideoStream) -> Iterator[Packet[Any]]:
    """Yield packets, with stamps changed in place.

    These are those of FLV behind a lap, GIF with delays of up to 10 ms, Ogg before 0, and sound of MP4 beside pictures
    that FFmpeg moves.

    Args:
        packets: Packets in the container's order.
        video: Stream of pictures of the container.
    """
    container = video.container.format.name
    if container == "gif":
        yield from with_usual_delays(packets, container)
    elif shift_s := sound_shift_s(video):
        yield from _with_moved_sound(packets, shift_s)
    else:
        yield from without_laps(with_signs(packets, container), container)


def _with_moved_sound(packets: Iterable[Packet[Any]], shift_s: Fraction) -> Iterator[Packet[Any]]:
    for packet in packets:
        if packet.size and packet.stream.type == "audio" and packet.time_base:
            ticks = round(shift_s / packet.time_base)
            if packet.pts is not None:
                packet.pts += ticks
            if packet.dts is not None:
                packet.dts += ticks
        yield packet
