"""Packets of H.264 behind lost ones that they refer to: decoders copy another picture in, without an error.

Pictures that others refer to are counted by `frame_num` (ITU-T H.264, 7.4.3), so a number left out tells a loss.
"""

from __future__ import annotations

from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.h264_sets import read_sequence
from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_units,
    prefix_bytes,
    record_units,
    without_emulation,
)

_SLICES, _IDR, _SPS, _PPS = (1, 2, 5), 5, 7, 8
_READ_BYTES, _SLICE_BYTES = 4096, 64
_BEGINS_ANEW = 1
"""Largest number behind a picture that forgets all others and counts as 0 (7.4.3), which only its marking tells."""


class LostReferences:
    """Watch of the packets of one stream in coding order.

    Args:
        stream: Video stream that is decoded.
    """

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        self._is_h264 = context.codec.canonical_name == "h264"
        header = bytes(context.extradata or b"") if self._is_h264 else b""
        self._prefix = prefix_bytes(header, "h264")
        # Of a sequence set: bits of a number, separate planes, gaps allowed.
        self._sequences: dict[int, tuple[int, bool, bool]] = {}
        self._pictures: dict[int, int] = {}  # sequence set of a picture set
        self._number: int | None = None  # of the last picture that others refer to
        self._is_lost = False
        units = nal_units(header, None) if self._prefix is None else record_units(header, "h264")
        for unit in units:
            self._take_set(unit)

    def take(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet lies behind a loss and before the next key frame."""
        if not self._is_h264 or not packet.size:
            return False
        is_gap = self._is_gap(bytes(packet))
        self._is_lost = (self._is_lost or is_gap) and not packet.is_keyframe
        return self._is_lost

    def _is_gap(self, packet: bytes) -> bool:
        """Return whether numbers are left out before the picture in a packet; False where it cannot be read."""
        for unit in nal_units(packet, self._prefix):
            if unit[0] & 31 in _SLICES:
                try:
                    return self._is_gap_before(unit)
                except ParameterError:
                    self._number = None
                    return False
            self._take_set(unit)
        return False

    def _is_gap_before(self, unit: bytes) -> bool:
        bits = Bits(without_emulation(unit[1:_SLICE_BYTES]))
        bits.unsigned()
        bits.unsigned()
        sequence = self._sequences.get(self._pictures.get(bits.unsigned(), -1))
        if sequence is None:
            self._number = None
            return False
        number_bits, has_planes, allows_gaps = sequence
        bits.take(2 * has_planes)
        number, before = bits.take(number_bits), self._number
        if unit[0] >> 5 & 3:
            self._number = number
        if unit[0] & 31 == _IDR or before is None or allows_gaps or number <= _BEGINS_ANEW:
            return False
        return (number - before) % (1 << number_bits) > 1

    def _take_set(self, unit: bytes) -> None:
        try:
            if unit[0] & 31 == _SPS:
                self._take_sequence(Bits(without_emulation(unit[1:_READ_BYTES])))
            elif unit[0] & 31 == _PPS:
                bits = Bits(without_emulation(unit[1:_SLICE_BYTES]))
                set_id = bits.unsigned()
                self._pictures[set_id] = bits.unsigned()
        except ParameterError:
            return

    def _take_sequence(self, bits: Bits) -> None:
        set_id, number_bits, has_planes, allows_gaps = read_sequence(bits)
        self._sequences[set_id] = number_bits, has_planes, allows_gaps
