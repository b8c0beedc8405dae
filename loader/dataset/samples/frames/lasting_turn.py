"""Turned pictures of H.264 and HEVC: an SEI message holds for the pictures behind its own, and FFmpeg forgets it.

H.264 calls it display orientation (ITU-T H.264, D.1.27), HEVC too (ITU-T H.265, D.2.17). The decoder gets the message
again with each picture for which it holds.
"""

from typing import TYPE_CHECKING, cast

from reelweave.loader.dataset.samples.frames.nal_units import nal_bounds, prefix_bytes, sei_messages

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

_ORIENTATION = 47  # payload of SEI
_SEI = {"h264": 6, "hevc": 39}
_BEGINS = {"h264": range(5, 6), "hevc": range(16, 21)}  # of a coded video sequence: IDR, BLA
_PICTURES = {"h264": range(1, 6), "hevc": range(32)}
_HEADER = {"h264": 1, "hevc": 2}
_LEAST_BYTES = 3  # of a unit that is a picture or a message
_HEAD_BYTES = 1 << 14  # of a packet, in which messages mostly lie


class LastingTurn:
    """Messages of one stream on how its pictures are turned.

    Args:
        stream: Video stream that is decoded.

    Attributes:
        seen: True once a message turned pictures.
    """

    def __init__(self, stream: "VideoStream") -> None:
        context = stream.codec_context
        self._codec = context.codec.canonical_name
        self._prefix = prefix_bytes(context.extradata or b"", self._codec)
        self._message = b""  # that holds
        self.seen = False

    def __call__(self, packet: "Packet[VideoStream]") -> "Packet[VideoStream]":
        """Return the packet of a picture, with the message that holds for it; of a codec without messages as it is.

        A picture that an edit list leaves out needs none, and its packet must keep the mark that says so.
        """
        if not packet.size or self._codec not in _SEI:
            return packet
        is_stated = False
        for at, kind, unit in self._units_to_picture(packet):
            if kind in _PICTURES[self._codec]:
                if is_stated:
                    return packet
                if kind in _BEGINS[self._codec]:
                    self._message = b""
                holds = self._message and not packet.is_discard
                return self._with_message(packet, at) if holds else packet
            payload = _orientation(unit[_HEADER[self._codec] :]) if kind == _SEI[self._codec] else None
            if payload is not None:
                is_stated = True
                turns, lasts = _read(payload, self._codec)
                self._message = bytes(unit) if turns and lasts else b""
                self.seen |= turns
        return packet

    def _units_to_picture(self, packet: "Packet[VideoStream]") -> list[tuple[int, int, memoryview]]:
        """Return where each NAL unit begins with its prefix, its type, and itself, up to the first of a picture."""
        # Messages come before pictures, whose end is far: at 40 Mbit/s to look for it takes 4 % of the decode.
        for data in (bytes(memoryview(packet)[:_HEAD_BYTES]), packet):
            units: list[tuple[int, int, memoryview]] = []
            for at, begin, end in nal_bounds(bytes(data), self._prefix):
                if end - begin < _LEAST_BYTES:
                    continue
                unit = memoryview(data)[begin:end]
                kind = unit[0] & 0x1F if self._codec == "h264" else unit[0] >> 1 & 0x3F
                units.append((at, kind, unit))
                if kind in _PICTURES[self._codec]:
                    return units
        return units

    def _with_message(self, packet: "Packet[VideoStream]", at: int) -> "Packet[VideoStream]":
        from av.packet import Packet

        data = bytes(packet)
        head = b"\0\0\1" if self._prefix is None else len(self._message).to_bytes(self._prefix, "big")
        twin = cast("Packet[VideoStream]", Packet(data[:at] + head + self._message + data[at:]))
        twin.pts, twin.dts, twin.duration, twin.time_base = (
            packet.pts,
            packet.dts,
            packet.duration,
            packet.time_base,
        )
        twin.is_keyframe, twin.stream = packet.is_keyframe, packet.stream
        twin.is_corrupt, twin.opaque = packet.is_corrupt, packet.opaque
        return twin


def _orientation(unit: memoryview) -> bytes | None:
    """Return the message on orientation among those of an SEI unit, or None without one."""
    messages, _ = sei_messages(bytes(unit))
    return next((payload for kind, payload in messages if kind == _ORIENTATION), None)


def _read(payload: bytes, codec: str) -> tuple[bool, bool]:
    """Return whether a message turns pictures, and whether it holds beyond its own one."""
    bits = "".join(f"{byte:08b}" for byte in payload)
    is_cancelled = bits[:1] != "0" or len(bits) < 20
    # H.264 counts periods in exp-Golomb, of which 0 is a single 1; HEVC has a flag.
    lasts = bits[19:20] == ("0" if codec == "h264" else "1")
    return not is_cancelled and int(bits[1:19], 2) > 0, lasts
