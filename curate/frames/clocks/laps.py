"""Stamps of FLV that begin anew between key frames: laps of 2^31 and 2^24 milliseconds, and clocks that restart.

Around such a place pictures of both clocks are shown by turns where B-frames are, so that no stamp of a frame tells
the clock of its packet. Packets do, in their order. A restart at a key frame is left as it is: other recordings may
be joined there, and the stamps of frames tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import av
from av.packet import Packet

_LAP = 1 << 31
"""Ticks after which writers begin at 0 again; FFmpeg takes it for a lap of twice as many."""

_SHORT_LAP = 1 << 24
"""The same for writers that leave out the fourth byte of a stamp."""

_NEAR = 5000  # ticks by which a step back may differ from a lap, and from that of another stream
_RESTART = 1000  # ticks back from which on a clock restarts
_MOST_HELD = 512  # packets among which the pictures' step is, behind a step of their sound


def without_laps(packets: Iterable[Packet[Any]], container: str) -> Iterator[Packet[Any]]:
    """Yield packets, those of FLV with stamps that go on where the clock began anew.

    Args:
        packets: Packets in the container's order; stamps are changed in place.
        container: Name of the container in FFmpeg.
    """
    yield from _without_restarts(_without_laps(packets)) if container == "flv" else packets


def _without_laps(packets: Iterable[Packet[Any]]) -> Iterator[Packet[Any]]:
    last: dict[int, int] = {}
    later: dict[int, int] = {}
    for packet in packets:
        if packet.size and packet.dts is not None:  # the packet at the end has a stream, but no index
            stream = packet.stream.index
            step = packet.dts - last.get(stream, packet.dts)
            laps = round(step / _LAP)
            later[stream] = later.get(stream, 0) - laps * _LAP
            if abs(step - laps * _LAP + _SHORT_LAP) < _NEAR:
                later[stream] += _SHORT_LAP
            last[stream] = packet.dts
            _delay(packet, later[stream])
        yield packet


class _Restarts:
    """Restarts of a clock between key frames, by the times of coding of pictures and sound."""

    def __init__(self) -> None:
        self._ends: dict[
            int, tuple[int, int]
        ] = {}  # the last time of each stream, and its distance from the one before
        self._later: dict[int, int] = {}
        self._all_later = 0  # delay of the pictures

    def is_restart(self, packet: Packet[Any]) -> bool:
        """Return whether a packet lies far before the one before it in its stream, with all delays so far."""
        later = self._later.get(packet.stream.index, 0)
        return self._step(packet, later) < -_RESTART and not self._ends_restart(packet)

    def join(self, packet: Packet[Any]) -> None:
        """Let a packet of pictures between key frames go on where the one before it ended; others restart."""
        stream = packet.stream.index
        if not packet.is_keyframe:
            later = self._later.get(stream, 0)
            self._all_later = later + self._ends[stream][1] - self._step(packet, later)

    def take(self, packet: Packet[Any]) -> None:
        """Delay a packet as those before it in its stream, or as the pictures where that ends a restart."""
        if not packet.size or packet.dts is None:
            return
        stream = packet.stream.index
        if self._step(packet, self._later.get(stream, 0)) < -_RESTART and self._ends_restart(packet):
            self._later[stream] = self._all_later
        _delay(packet, self._later.get(stream, 0))
        last, gap = self._ends.get(stream, (packet.dts, 0))
        self._ends[stream] = packet.dts, packet.dts - last if packet.dts > last else gap

    def _ends_restart(self, packet: Packet[Any]) -> bool:
        """Return whether a packet goes on where the one before it ended, if it is delayed as the pictures are."""
        step = self._step(packet, self._later.get(packet.stream.index, 0))
        return abs(self._step(packet, self._all_later)) < min(_NEAR, abs(step) / 2)

    def _step(self, packet: Packet[Any], later: int) -> int:
        last, _ = self._ends.get(packet.stream.index, (None, 0))
        return 0 if last is None or packet.dts is None else packet.dts + later - last


def _without_restarts(packets: Iterable[Packet[Any]]) -> Iterator[Packet[Any]]:
    restarts = _Restarts()
    held: list[Packet[Any]] = []  # behind a step of sound, until its pictures step, too
    fault: av.error.FFmpegError | OSError | None = None
    try:
        for packet in packets:
            held.append(packet)
            is_restart = bool(packet.size) and packet.dts is not None and restarts.is_restart(packet)
            if is_restart and packet.stream.type == "video":
                restarts.join(packet)
            elif (is_restart or len(held) > 1) and len(held) < _MOST_HELD:
                continue
            yield from _taken(held, restarts)
    except (av.error.FFmpegError, OSError) as error:
        fault = error
    yield from _taken(held, restarts)
    if fault is not None:
        raise fault


def _taken(held: list[Packet[Any]], restarts: _Restarts) -> Iterator[Packet[Any]]:
    while held:
        packet = held.pop(0)
        restarts.take(packet)
        yield packet


def _delay(packet: Packet[Any], ticks: int) -> None:
    if ticks and packet.dts is not None:
        packet.dts += ticks
        if packet.pts is not None:
            packet.pts += ticks
