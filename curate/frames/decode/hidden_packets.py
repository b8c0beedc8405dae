"""Packets of pictures in the middle of a film that FFmpeg marks as hidden, and no player of its kind shows."""

from __future__ import annotations

from av.packet import Packet
from av.video.stream import VideoStream

_NEAR = 16
"""Packets from the first or last one that is shown, among which those of a cut piece are hidden in coding order."""


class HiddenPackets:
    """Count of hidden packets, other than those that an edit list cuts off at the begin and the end.

    FFmpeg hides the first fragment of MP4 that begins before the end of those before it, as joined recordings have it,
    and what lies between the edits of an edit list.
    """

    def __init__(self) -> None:
        self.count = 0
        self._shown = 0
        self._waiting = 0  # hidden ones, until enough packets behind them are shown
        self._behind = 0  # shown ones behind them

    def take(self, packet: Packet[VideoStream]) -> None:
        """Note a packet in the container's order."""
        if packet.is_discard:
            self._waiting += self._shown >= _NEAR
            self._behind = 0
            return
        self._shown += 1
        self._behind += 1
        if self._behind == _NEAR:
            self.count, self._waiting = self.count + self._waiting, 0

    def describe(self) -> str:
        """Return in words how many pictures are hidden, "" for none."""
        if not self.count:
            return ""
        return f"{self.count} pictures that an edit list, or fragments that step back, hide are left out, as by FFmpeg"
