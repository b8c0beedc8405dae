"""State that decoders of sound carry from packet to packet, without which a clip would begin with other sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from av.audio.stream import AudioStream
from av.packet import Packet

FROM_THE_BEGIN = frozenset({"adpcm_yamaha"})
"""Codecs each of whose samples is a difference to the one before, with no fresh start in any packet."""

_DVD_HEADER = 3  # bytes before the samples of a packet of pcm_dvd
_MPEG1 = 3


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
