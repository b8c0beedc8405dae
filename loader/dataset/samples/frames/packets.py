"""Packets of a container's streams, one for each picture of H.264 and HEVC."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from reelweave.loader.dataset.samples.frames.nal_units import nal_bounds, prefix_bytes, sei_messages

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream

_AHEAD, _LOOKED_AT = 32, 4
"""Packets, and pictures among them, that tell whether each slice is a packet."""
_MOST_PICTURE_BYTES = 1 << 26

_MOST_BYTES = 1 << 14
"""Bytes of a packet above which it holds a picture."""

_SHORT = {"h264": {9: 2, 10: 1, 11: 1}, "hevc": {35: 3, 36: 2, 37: 2}}
"""Maximum bytes by type of NAL units without content: delimiters, ends of a sequence and of a stream."""

_SETS = {"h264": (7, 8, 13, 15), "hevc": (32, 33, 34)}  # parameter sets
_MESSAGES = {"h264": (6,), "hevc": (39, 40)}
_FILLER = {"h264": 12, "hevc": 38}
_HEADER = {"h264": 1, "hevc": 2}
_SLICES = {"h264": (1, 2, 5), "hevc": range(32)}
"""Types and headers of NAL units: ITU-T H.264, table 7-1, and H.265, table 7-1."""


def read_packets(container: "InputContainer", *streams: "Stream") -> "Iterator[Packet[Any]]":
    """Yield the packets of streams in the container's order, and at its end an empty one of each.

    Recorders of live streams write delimiters, messages and parameter sets of H.264 and HEVC as packets of their own,
    which FFmpeg's decoders refuse. They come with the packet of the picture behind them, under its stamps. So do the
    slices of a picture where each is a packet, which the first packets tell.
    """
    joiners = {
        stream.index: _Joiner(stream)
        for stream in streams
        if stream.type == "video" and _codec_of(stream) in _SETS
    }
    for packet in _looked_ahead(_known_packets(container, streams), joiners):
        joiner = joiners.get(packet.stream_index)
        if joiner is None:
            yield packet
        else:
            yield from joiner.join(packet)


def _looked_ahead(packets: "Iterator[Packet[Any]]", joiners: "dict[int, _Joiner]") -> "Iterator[Packet[Any]]":
    """Yield packets, of which the joiners see the first ones before."""
    ahead: list[Packet[Any]] = []
    fault: Exception | None = None
    try:
        while len(ahead) < _AHEAD and any(joiner.looks for joiner in joiners.values()):
            ahead.append(next(packets))
            if (joiner := joiners.get(ahead[-1].stream_index)) is not None:
                joiner.look(ahead[-1])
    except StopIteration:
        pass
    except Exception as error:  # noqa: BLE001 - raised again behind the packets before it
        fault = error
    yield from ahead
    if fault is not None:
        raise fault
    yield from packets


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
    """Packets of one stream, joined to pictures.

    Attributes:
        looks: Number of further pictures, or parts of one, to look at.
    """

    def __init__(self, stream: "Stream") -> None:
        self.looks = _LOOKED_AT
        self._codec = _codec_of(stream)
        self._prefix = prefix_bytes(bytes(stream.codec_context.extradata or b""), self._codec)
        self._held, self._is_key = b"", False
        self._is_sliced = False
        self._parts: list[Packet[Any]] = []  # of a picture
        self._part_bytes = 0

    def look(self, packet: "Packet[Any]") -> None:
        """Look at a packet that comes later: one that goes on with the picture before is a slice."""
        is_further = self._goes_on(packet)
        if is_further is not None:
            self._is_sliced = is_further and self.looks < _LOOKED_AT
            self.looks = 0 if self._is_sliced else self.looks - 1

    def join(self, packet: "Packet[Any]") -> "Iterator[Packet[Any]]":
        """Yield packets of a picture each that a packet completes; one without a picture is held."""
        if 0 < packet.size <= _MOST_BYTES and self._is_without_picture(data := bytes(packet)):
            if len(self._held) + len(data) <= _MOST_BYTES:
                self._held, self._is_key = self._held + data, self._is_key or packet.is_keyframe
            return
        if packet.size and self._parts and self._fits(packet) and self._goes_on(packet):
            self._parts.append(packet)
            self._part_bytes += packet.size
            return
        yield from self._end()
        held, is_key, self._held, self._is_key = self._held, self._is_key, b"", False
        # A twin would not have the mark of what an edit list leaves out.
        if held and packet.size and not packet.is_discard:
            packet = _twin([packet], held, is_key)
        if self._is_sliced and packet.size and not packet.is_discard:
            self._parts, self._part_bytes = [packet], packet.size
        else:
            yield packet

    def _fits(self, packet: "Packet[Any]") -> bool:
        return self._part_bytes + packet.size <= _MOST_PICTURE_BYTES and not packet.is_discard

    def _end(self) -> "Iterator[Packet[Any]]":
        """Yield the picture of the parts so far."""
        parts, self._parts = self._parts, []
        if parts:
            yield parts[0] if len(parts) == 1 else _twin(parts)

    def _goes_on(self, packet: "Packet[Any]") -> bool | None:
        """Return whether the first slice of a packet is a further one of a picture; None without a slice.

        The first one begins with macroblock 0, or says that it is the first (H.264, 7.3.3; H.265, 7.3.6.1).
        """
        data, codec = bytes(packet), self._codec
        for _, begin, end in nal_bounds(data, self._prefix):
            kind = data[begin] & 31 if codec == "h264" else data[begin] >> 1 & 63
            if kind in _SLICES[codec] and begin + _HEADER[codec] < end:
                return not data[begin + _HEADER[codec]] & 0x80
        return None

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


def _twin(parts: "list[Packet[Any]]", before: bytes = b"", is_key: bool = False) -> "Packet[Any]":
    """Return a packet of other bytes and those of all parts, under the stamps of the first one."""
    from av.packet import Packet

    packet, last = parts[0], parts[-1]
    twin = cast("Packet[Any]", Packet(before + b"".join(map(bytes, parts))))
    twin.pts, twin.dts, twin.duration, twin.time_base = (
        packet.pts,
        packet.dts,
        packet.duration,
        packet.time_base,
    )
    if len(parts) > 1 and packet.pts is not None and last.pts is not None:
        twin.duration = max(last.pts + (last.duration or 0) - packet.pts, packet.duration or 0)
    twin.is_keyframe, twin.stream = is_key or any(part.is_keyframe for part in parts), packet.stream
    twin.is_corrupt, twin.opaque = any(part.is_corrupt for part in parts), packet.opaque
    for data in packet.iter_sidedata():
        twin.set_sidedata(data)
    return twin
