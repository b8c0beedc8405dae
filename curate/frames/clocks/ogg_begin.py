"""Stamps of pieces of Ogg that begin before 0, as `ffmpeg -ss T -c copy` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log2
from typing import Any

import av
from av.packet import Packet

_NEVER_S = 10_000_000
"""Seconds above which a stamp of pictures was below 0 and read without its sign; 2^32 ticks of 240 Hz last longer."""

_NEAR_S = 1_000_000
"""Maximum distance from 0 of the stamp that is meant."""

_PAGE = 255
"""Maximum number of packets on a page of Ogg, which alone has wrong stamps where sound begins before 0."""

_MOST_HELD = 1024  # packets that are read ahead for it


def with_signs(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, those of Ogg with the stamps below 0 that their writer meant.

    FFmpeg reads such times of pictures without their sign, in the bits that their codec has for them. The first page of
    sound begins at 0 where its end lies before 0.

    Args:
        packets: Packets in the container's order; stamps are changed in place.
        container: Name of the container in FFmpeg.
    """
    if container != "ogg":
        yield from packets
        return
    packets = iter(packets)
    held: list[Packet[Any]] = []
    fault: av.error.FFmpegError | OSError | None = None
    try:
        _hold_begin(packets, held)
    except (av.error.FFmpegError, OSError) as error:
        fault = error
    yield from held
    if fault is not None:
        raise fault
    for packet in packets:
        if packet.size and packet.pts is not None and packet.stream.type == "video":
            _sign(packet)
        yield packet


def _hold_begin(packets: Iterator[Packet[Any]], held: list[Packet[Any]]) -> None:
    """Read packets into ``held`` until the stamps of a piece's first page of sound are mended, or the film is none."""
    sound: list[Packet[Any]] = []
    is_piece: bool | None = None  # unknown until the first picture
    for packet in packets:
        held.append(packet)
        if len(held) >= _MOST_HELD:
            return
        if not packet.size or packet.pts is None:
            continue
        if packet.stream.type == "video":
            is_signed = _sign(packet)
            is_piece = is_signed if is_piece is None else is_piece
        elif packet.stream.type == "audio":
            if sound and packet.pts < min(1, sound[-1].pts or 0):
                _move_before(sound, packet.pts)
                return
            sound.append(packet)
        if is_piece is False or len(sound) > _PAGE:
            return


def _sign(packet: Packet[Any]) -> bool:
    """Give the stamp of a picture its sign, and return whether it lacked one."""
    pts, tick_s = packet.pts or 0, packet.time_base
    if tick_s is None or pts * tick_s < _NEVER_S:
        return False
    signed = pts - (1 << round(log2(pts)))
    if abs(signed * tick_s) > _NEAR_S:
        return False
    packet.pts = packet.dts = signed
    return True


def _move_before(page: list[Packet[Any]], end: int) -> None:
    """Let a page of sound end where the next one begins."""
    last = page[-1]
    earlier = (last.pts or 0) + (last.duration or 0) - end
    for packet in page:
        packet.pts = (packet.pts or 0) - earlier
        packet.dts = packet.pts
