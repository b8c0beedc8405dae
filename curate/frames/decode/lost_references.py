"""Packets of H.264 behind lost ones that they refer to: decoders copy another picture in, without an error.

Pictures that others refer to are counted by `frame_num` (ITU-T H.264, 7.4.3), so a number left out tells a loss.
"""

from __future__ import annotations

from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.loader.dataset.samples.frames.bits import ParameterError
from reelweave.loader.dataset.samples.frames.h264_sets import SLICES, H264Sets
from reelweave.loader.dataset.samples.frames.nal_units import nal_units

_IDR = 5
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
        self._sets = H264Sets(header)
        self._number: int | None = None  # of the last picture that others refer to
        self._is_lost = False

    def take(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet lies behind a loss and before the next key frame."""
        if not self._is_h264 or not packet.size:
            return False
        is_gap = self._is_gap(bytes(packet))
        self._is_lost = (self._is_lost or is_gap) and not packet.is_keyframe
        return self._is_lost

    def _is_gap(self, packet: bytes) -> bool:
        """Return whether numbers are left out before the picture in a packet; False where it cannot be read."""
        for unit in nal_units(packet, self._sets.prefix):
            if unit[0] & 31 in SLICES:
                try:
                    return self._is_gap_before(unit)
                except ParameterError:
                    self._number = None
                    return False
            self._sets.take(unit)
        return False

    def _is_gap_before(self, unit: bytes) -> bool:
        bits, sequence = self._sets.begin_slice(unit)
        if sequence is None:
            self._number = None
            return False
        number, before = bits.take(sequence.number_bits), self._number
        if unit[0] >> 5 & 3:
            self._number = number
        if unit[0] & 31 == _IDR or before is None or sequence.allows_gaps or number <= _BEGINS_ANEW:
            return False
        return (number - before) % (1 << sequence.number_bits) > 1
