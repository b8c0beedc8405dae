"""Streams of pictures of TS that go on with sound, as where the PIDs of a recorder change."""

from __future__ import annotations

from collections.abc import Iterator

from av.packet import Packet
from av.video.stream import VideoStream

_SYNC_BYTES = (0xFF, 0x0B)
"""First bytes of packets of AAC and MPEG audio, and of AC-3."""
_START = b"\0\0\1"
"""Start code, which all codecs of pictures in TS have."""


class TurnToSound:
    """Packets of pictures before those of sound.

    Attributes:
        byte: Place in the file of the last packet of pictures, behind which others begin; None without sound.
    """

    def __init__(self) -> None:
        self.byte: int | None = None

    def before(self, packets: Iterator[Packet[VideoStream]]) -> Iterator[Packet[VideoStream]]:
        """Yield the packets up to those of sound, but for the last one before.

        FFmpeg loses what its parser holds there: the last picture may refer to another that does not come.
        """
        held: Packet[VideoStream] | None = None
        try:
            for packet in packets:
                if packet.size and (self.byte is not None or _is_sound(packet)):
                    if self.byte is None:
                        self.byte = (held or packet).pos or 0
                    held = None
                    continue
                if held is not None:
                    yield held
                held = packet
        except Exception:
            if held is not None:
                yield held
            raise
        if held is not None:
            yield held


def _is_sound(packet: Packet[VideoStream]) -> bool:
    data = memoryview(packet)
    return data[0] in _SYNC_BYTES and _START not in bytes(data)
