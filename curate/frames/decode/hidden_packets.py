"""Packets of pictures in the middle of a film that FFmpeg marks as hidden, and no player of its kind shows."""

from __future__ import annotations

from array import array

import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream

_NEAR = 16
"""Packets from the first or last one that is shown, among which those of a cut piece are hidden in coding order."""


class HiddenPackets:
    """Pictures that are not shown, other than those that one edit cuts off at the begin and the end.

    FFmpeg hides the first fragment of MP4 that begins before the end of those before it, as joined recordings have it,
    and what lies between the edits of an edit list. A picture may come hidden and be shown by another edit, and what
    no edit is near to does not come at all.

    Attributes:
        is_between: True where packets between those that are shown are hidden.
    """

    def __init__(self) -> None:
        self.is_between = False
        self._shown, self._hidden = array("q"), array("q")  # places of the packets in the file
        self._waiting = False  # for enough packets behind hidden ones that are shown
        self._behind = 0  # shown ones behind them

    def take(self, packet: Packet[VideoStream]) -> None:
        """Note a packet in the container's order."""
        place = -1 if packet.pos is None else packet.pos
        if packet.is_discard:
            self._waiting |= len(self._shown) >= _NEAR
            self._behind = 0
            self._hidden.append(place)
            return
        self._shown.append(place)
        self._behind += 1
        if self._behind == _NEAR:
            self.is_between, self._waiting = self.is_between or self._waiting, False

    def count(self, stored: int) -> int:
        """Return the number of pictures that are never shown.

        Args:
            stored: Number of pictures by the index of the file, 0 where it has none.
        """
        shown = np.unique(self._shown)
        hidden = len(np.setdiff1d(self._hidden, shown))
        is_placed = len(shown) > 0 and shown[0] >= 0
        return max(hidden, stored - len(shown)) if is_placed else len(self._hidden)

    def describe(self, stored: int, edits: int) -> str:
        """Return in words how many pictures are hidden, "" for none, and for those around a single edit.

        Args:
            stored: Number of pictures by the index of the file, 0 where it has none.
            edits: Number of edits in the list of the pictures.
        """
        if not self.is_between and edits < 2:
            return ""
        count = self.count(stored)
        if not count:
            return ""
        return f"{count} pictures that an edit list, or fragments that step back, hide are left out, as by FFmpeg"
