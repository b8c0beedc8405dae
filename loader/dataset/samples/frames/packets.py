"""Packets of a container's streams, one for each picture of H.264 and HEVC."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from reelweave.loader.dataset.samples.frames.nal_units import nal_bounds, prefix_bytes, sei_messages

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream

_MOST_BYTES = 1 << 14
"""Bytes of a packet above which it holds a picture."""

_SHORT = {"h264": {9: 2, 10: 1, 11: 1}, "hevc": {35: 3, 36: 2, 37: 2}}
"""Maximum bytes by type of NAL units without content: delimiters, ends of a sequence and of a stream."""

_SETS = {"h264": (7, 8, 13, 15), "hevc": (32, 33, 34)}  # parameter sets
_MESSAGES = {"h264": (6,), "hevc": (39, 40)}
_FILLER = {"h264": 12, "hevc": 38}
_HEADER = {"h264": 1, "hevc": 2}
"""Types and headers of NAL units: ITU-T H.264, table 7-1, and H.265, table 7-1."""


def read_packets(container: "InputContainer", *streams: "Stream") -> "Iterator[Packet[Any]]":
    """Yield the packets of streams in the container's order, and at its end an empty one of each.

    Recorders of live streams write delimiters, messages and parameter sets of H.264 and HEVC as packets of their own,
    which FFmpeg's decoders refuse. They come with the packet of the picture behind them, under its stamps.
    """
    joiners = {
        stream.index: _Joiner(stream)
        for stream in streams
        if stream.type == "video" and _codec_of(stream) in _SETS
    }
    for packet in _known_packets(container, streams):
        joiner = joiners.get(packet.stream_index)
        if joiner is None:
            yield packet
        elif (picture := joiner.join(packet)) is not None:
            yield picture


def _known_packets(container: "InputContainer", streams: "tuple[Stream, ...]") -> "Iterator[Packet[Any]]":
    """Yield the packets of the streams that PyAV knows.

    Of TS, MPEG-PS and FLV, streams may begin behind the bytes that are read ahead. PyAV does not know these, and fails
    at the end of the file, behind all packets of the streams that it knows.
    """
    packets = container.demux(*streams)
    while True:
        try:
            packet = next(packets, None)
        except IndexError:
            return
        if packet is None:
            return
        yield packet


def _codec_of(stream: "Stream") -> str:
    context = getattr(stream, "codec_context", None)  # None where FFmpeg has no decoder
    return "" if context is None else context.codec.canonical_name


class _Joiner:
    def __init__(self, stream: "Stream") -> None:
        self._codec = _codec_of(stream)
        self._prefix = prefix_bytes(bytes(stream.codec_context.extradata or b""), self._codec)
        self._held, self._is_key = b"", False

    def join(self, packet: "Packet[Any]") -> "Packet[Any] | None":
        """Return a packet with the units before it, or None for one without a picture, which is held."""
        if 0 < packet.size <= _MOST_BYTES and self._is_without_picture(data := bytes(packet)):
            if len(self._held) + len(data) <= _MOST_BYTES:
                self._held, self._is_key = self._held + data, self._is_key or packet.is_keyframe
            return None
        held, is_key, self._held, self._is_key = self._held, self._is_key, b"", False
        # A twin would not have the mark of what an edit list leaves out.
        if not held or not packet.size or packet.is_discard:
            return packet
        return _twin(packet, held, is_key)

    def _is_without_picture(self, data: bytes) -> bool:
        """Return whether a packet consists of units that are no pictures, and are as these must be."""
        ends = 0
        for _, begin, end in nal_bounds(data, self._prefix):
            if not self._is_aside(data[begin:end]):
                return False
            ends = end
        return ends == len(data)

    def _is_aside(self, unit: bytes) -> bool:
        codec, header = self._codec, _HEADER[self._codec]
        kind = unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63
        if kind in _MESSAGES[codec]:
            return sei_messages(unit[header:])[1]
        if kind == _FILLER[codec]:
            return not unit[header:].rstrip(b"\0").removesuffix(b"\x80").strip(b"\xff")
        return kind in _SETS[codec] or len(unit.rstrip(b"\0")) <= _SHORT[codec].get(kind, 0)


def _twin(packet: "Packet[Any]", before: bytes, is_key: bool) -> "Packet[Any]":
    """Return a packet with other bytes before its own."""
    from av.packet import Packet

    twin = cast("Packet[Any]", Packet(before + bytes(packet)))
    twin.pts, twin.dts, twin.duration, twin.time_base = (
        packet.pts,
        packet.dts,
        packet.duration,
        packet.time_base,
    )
    twin.is_keyframe, twin.stream = packet.is_keyframe or is_key, packet.stream
    twin.is_corrupt, twin.opaque = packet.is_corrupt, packet.opaque
    for data in packet.iter_sidedata():
        twin.set_sidedata(data)
    return twin
