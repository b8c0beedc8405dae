"""Headers of packets that state the size of pictures; where they change, only decoding tells the sizes."""

from collections.abc import Iterator

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from reelweave.curate.foreign.resized_frames import SEQUENCE, Av1Sizes, open_units, resizes_vp9
from reelweave.loader.dataset.samples.frames.nal_units import nal_units, prefix_bytes

_PARAMETERS = {"h264": (0, 0x1F, 7), "hevc": (1, 0x3F, 33)}
"""Shift, mask and nal_unit_type of sequence parameter sets: ITU-T H.264, table 7-1, and H.265, table 7-1."""

_READ = frozenset((*_PARAMETERS, "vp8", "vp9", "av1", "mjpeg", "prores"))


class SizeHeaders:
    """Headers of the packets of one stream.

    Args:
        codec: Decoder of the stream.

    Attributes:
        change: True if two packets, or a packet and the container, have different headers, or a frame between key
            frames has a size of its own.
    """

    def __init__(self, codec: VideoCodecContext) -> None:
        self._codec = codec.codec.canonical_name
        header = bytes(codec.extradata or b"")
        self._prefix: int | None = None
        self._known: set[bytes] = set()
        if self._codec in _PARAMETERS:
            self._prefix = prefix_bytes(header, self._codec)
            self._known |= set(self._sets(_read_units(header, self._codec))) if self._prefix else set()
        self._av1 = Av1Sizes()
        self.change = False

    def add(self, packet: "Packet[VideoStream]") -> None:
        """Compare the headers that the next packet brings with those before."""
        self.change |= packet.has_sidedata("new_extradata") or packet.has_sidedata("param_change")
        if self.change or self._codec not in _READ:
            return
        data = bytes(packet) if packet.is_keyframe or self._codec in ("vp9", "av1") else b""
        self.change = (self._codec == "vp9" and resizes_vp9(data)) or (
            self._codec == "av1" and self._av1.resizes(data)
        )
        if self.change or not packet.is_keyframe:
            return
        found = set(self._find_headers(data))
        self.change = bool(self._known) and not found <= self._known
        self._known |= found

    def _find_headers(self, data: bytes) -> Iterator[bytes]:
        if self._codec in _PARAMETERS:
            yield from self._sets(nal_units(data, self._prefix))
        elif self._codec == "vp8":  # RFC 6386, 9.1: width and height, without scaling
            yield bytes((data[6], data[7] & 0x3F, data[8], data[9] & 0x3F)) if len(data) > 9 else b""
        elif self._codec == "vp9":  # VP9 bitstream specification, 6.2: they begin within these bytes
            yield data[4:9]
        elif self._codec == "av1":
            yield from (content for kind, content in open_units(data) if kind == SEQUENCE)
        elif self._codec == "mjpeg":
            yield _size_of_jpeg(data)
        elif (
            self._codec == "prores"
        ):  # SMPTE RDD 36, 5.1: behind the size, "icpf", and three fields of the header
            yield data[16:20]

    def _sets(self, units: Iterator[bytes]) -> Iterator[bytes]:
        shift, mask, kind = _PARAMETERS[self._codec]
        yield from (unit.rstrip(b"\0") for unit in units if unit and unit[0] >> shift & mask == kind)


def _read_units(header: bytes, codec: str) -> Iterator[bytes]:
    """Yield the NAL units of a header of MP4 or Matroska: ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1."""
    if codec == "h264":
        yield from _read_counted_units(header, 6, header[5] & 0x1F if len(header) > 5 else 0)
        return
    at = 23
    for _ in range(header[22] if len(header) > 22 else 0):
        count = int.from_bytes(header[at + 1 : at + 3], "big")
        units = list(_read_counted_units(header, at + 3, count))
        yield from units
        at += 3 + sum(2 + len(unit) for unit in units)


def _read_counted_units(header: bytes, at: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        begin = at + 2
        at = begin + int.from_bytes(header[at:begin], "big")
        if at > len(header):
            return
        yield header[begin:at]


def _size_of_jpeg(data: bytes) -> bytes:
    """Return the fields of height and width in the frame header of a JPEG picture: ITU-T T.81, B.2.2."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            return data[at + 5 : at + 9]
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return b""
