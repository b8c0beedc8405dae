"""Stamps of pieces of Ogg that do not begin at 0, as `ffmpeg -ss T -c copy` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import log2
from typing import Any

import av
from av.packet import Packet

_NEVER_S = 10_000_000
"""Seconds above which a stamp of pictures was below 0 and read without its sign; 2^32 ticks of 240 Hz last longer."""

_NEAR_S = 1_000_000
"""Maximum distance from 0 of the stamp that is meant."""

_PAGES = 255
"""Maximum number of packets on a page of Ogg; of FLAC, which has few on each, the first two may have wrong stamps."""

_MOST_HELD = 1024  # packets that are read ahead for it


def with_signs(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, those of Ogg with the stamps below 0 that their writer meant.

    FFmpeg reads such times of pictures without their sign, in the bits that their codec has for them. It lets the first
    page of sound begin at 0 where that begins before 0, so that it overlaps the next one. The first page of FLAC
    begins at 0 for it, wherever it ends.

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
    """Read packets into ``held`` as far as stamps of a piece's first pages of sound are wrong, and mend them."""
    sound: list[Packet[Any]] = []
    is_piece: bool | None = None  # unknown until the first picture
    try:
        for packet in packets:
            held.append(packet)
            if packet.size and packet.pts is not None and packet.stream.type == "video":
                _sign(packet)
                is_piece = packet.pts < 0 if is_piece is None else is_piece
            elif packet.size and packet.pts is not None and packet.stream.type == "audio":
                sound.append(packet)
            is_over = is_piece is False and not _begins_with_flac(sound)
            if is_over or len(sound) > _PAGES or len(held) >= _MOST_HELD:
                break
    finally:
        if is_piece:
            _part(sound)
        if _is_flac(sound):
            _join_first_page(sound)


def _sign(packet: Packet[Any]) -> None:
    """Give the stamp of a picture the sign that it lacks."""
    pts, tick_s = packet.pts or 0, packet.time_base
    if tick_s is None or pts * tick_s < _NEVER_S:
        return
    signed = pts - (1 << round(log2(pts)))
    if abs(signed * tick_s) <= _NEAR_S:
        packet.pts = packet.dts = signed


def _part(sound: list[Packet[Any]]) -> None:
    """Let each packet of sound end at the latest where the next one begins."""
    for packet, following in reversed(list(pairwise(sound))):
        latest = (following.pts or 0) - (packet.duration or 0)
        packet.pts = packet.dts = min(packet.pts or 0, latest)


def _is_flac(sound: list[Packet[Any]]) -> bool:
    return bool(sound) and sound[0].stream.codec_context.name == "flac"


def _begins_with_flac(sound: list[Packet[Any]]) -> bool:
    """Return whether all packets so far, if any, are those of a first page of FLAC."""
    return not sound or (_is_flac(sound) and sound[0].pos == sound[-1].pos)


def _join_first_page(sound: list[Packet[Any]]) -> None:
    """Let the first page end where the second begins: at the time that it states for its end."""
    first = sum(packet.pos == sound[0].pos for packet in sound)
    for packet, following in reversed(list(pairwise(sound[: first + 1]))):
        packet.pts = packet.dts = (following.pts or 0) - (packet.duration or 0)
