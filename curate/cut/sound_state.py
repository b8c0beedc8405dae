"""Decoders of a source's sound: what they carry from packet to packet, and which one a packet needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec.context import CodecContext
from av.packet import Packet

FROM_THE_BEGIN = frozenset({"adpcm_yamaha"})
"""Codecs each of whose samples is a difference to the one before, with no fresh start in any packet."""

_DVD_HEADER = 3  # bytes before the samples of a packet of pcm_dvd
_MPEG1 = 3

_RECORDED = ("mpegts", "mpeg")
"""Containers whose streams may change their codec."""
_SYNCED = ("aac", "mp2", "mp3", "ac3", "eac3")
"""Codecs whose packets begin with a word of their own."""
_ALIKE = ({"mp2", "mp3"}, {"ac3", "eac3"})
_HEADER_BYTES, _MOST_AC3, _LAYER_2 = 7, 10, 4


def reservoir_begin(packets: Sequence[bytes], index: int) -> int:
    """Return the first packet that an MP3 frame needs, whose data may begin in frames before it (bit reservoir).

    Args:
        packets: Frames of MP3 with their headers, in order.
        index: Frame that must decode.
    """
    missing = _main_data(packets[index])[0]
    while missing > 0 and index > 0:
        index -= 1
        missing -= _main_data(packets[index])[1]
    return index


def _main_data(frame: bytes) -> tuple[int, int]:
    """Return how many bytes before a frame its data begin, and how many the frame holds (ISO/IEC 11172-3, 2.4.1)."""
    if len(frame) < 8:
        return 0, len(frame)
    is_mpeg1, is_mono = frame[1] >> 3 & 3 == _MPEG1, frame[3] >> 6 == 3
    side = 4 + (0 if frame[1] & 1 else 2)  # header and, where protected, its checksum
    begins = (frame[side] << 1 | frame[side + 1] >> 7) if is_mpeg1 else frame[side]
    side_info = (17 if is_mono else 32) if is_mpeg1 else (9 if is_mono else 17)
    return begins, max(0, len(frame) - side - side_info)


class WholeBlocks:
    """Packets of `pcm_dvd` that hold whole blocks of samples.

    FFmpeg writes packets of 24 bits that end within a block. Its decoder keeps the rest for the next packet, so it
    decodes to noise where it begins behind such a packet. All packets must be given, from the film's first one on.
    """

    def __init__(self) -> None:
        self._rest = b""

    def join(self, packet: Packet[AudioStream]) -> Packet[AudioStream]:
        """Return a packet with the rest of the one before at its begin, and without its own rest."""
        data = bytes(packet)
        header, samples = data[:_DVD_HEADER], self._rest + data[_DVD_HEADER:]
        block = _dvd_block(header)
        whole = len(samples) - len(samples) % block if block else len(samples)
        rest, self._rest = self._rest, samples[whole:]
        if not rest and not self._rest:
            return packet
        joined = cast("Packet[AudioStream]", Packet(header + samples[:whole]))
        joined.stream, joined.time_base = packet.stream, packet.time_base
        joined.pts, joined.dts, joined.duration = packet.pts, packet.dts, packet.duration
        return joined


def _dvd_block(header: bytes) -> int:
    """Return the bytes of a block of samples, or 0 where the header is none."""
    if len(header) < _DVD_HEADER or header[1] >> 6 == 3:
        return 0
    bits, channels = 16 + 4 * (header[1] >> 6), 1 + (header[1] & 7)
    if bits == 16:
        return channels * 2
    return {1: 4, 2: 4, 4: 4, 8: 8}.get(channels, 4 * channels) * bits // 8


class SoundDecoder:
    """Decoder of a stream's packets, some of which may be of another codec, as where a PID of TS changes it.

    FFmpeg frames such packets by their own codec, and keeps the decoder of the first one.
    """

    def __init__(self, stream: AudioStream) -> None:
        self._default = stream.codec_context
        self._default.flush_buffers()
        self._stream = stream
        self._others: dict[str, AudioCodecContext] = {}

    def decode(self, packet: Packet[AudioStream]) -> list[AudioFrame]:
        """Return the frames of a packet.

        Raises:
            av.FFmpegError: neither decoder knows it.
        """
        if is_own(self._stream, packet):
            return self._default.decode(packet)
        name = other_codec(bytes(packet), self._default.codec.canonical_name)
        if name not in self._others:
            self._others[name] = cast("AudioCodecContext", CodecContext.create(name, "r"))
        return self._others[name].decode(packet)


def is_own(stream: AudioStream, packet: Packet[AudioStream]) -> bool:
    """Return whether a packet is of the codec of its stream, as far as packets of TS tell theirs."""
    if stream.container.format.name not in _RECORDED:
        return True
    return not other_codec(bytes(packet), stream.codec_context.codec.canonical_name)


def other_codec(packet: bytes, codec: str) -> str:
    """Return the codec by which a packet of sound in TS begins, "" for its own, or for one without a known begin.

    Args:
        packet: First bytes of the packet.
        codec: Name of the stream's codec.
    """
    if len(packet) < _HEADER_BYTES or codec not in _SYNCED:
        return ""
    name = ""
    if packet[:2] == b"\x0b\x77":  # ETSI TS 102 366, 4.3.1 and E.1.3.1
        name = "ac3" if packet[5] >> 3 <= _MOST_AC3 else "eac3"
    elif packet[0] == 0xFF and packet[1] & 0xF6 == 0xF0:  # ISO/IEC 13818-7, 6.2: layer 0
        name = "aac"
    elif packet[0] == 0xFF and packet[1] & 0xE0 == 0xE0 and packet[1] & 6:  # ISO/IEC 11172-3, 2.4.1.3
        name = "mp2" if packet[1] & 6 == _LAYER_2 else "mp3"
    if {name, codec} in _ALIKE:  # by one decoder
        return ""
    return "" if name == codec else name
