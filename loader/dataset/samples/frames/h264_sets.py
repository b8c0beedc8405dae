"""Sequence parameter sets of H.264 (ITU-T H.264), and pictures whose fields are coded apart."""

from __future__ import annotations

from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_units,
    prefix_bytes,
    record_units,
    without_emulation,
)

_SLICES, _SPS, _PPS = (1, 2, 5), 7, 8
_WITH_CHROMA = frozenset(
    (44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244)
)  # profiles, 7.3.2.1.1
_READ_BYTES, _SLICE_BYTES = 4096, 64


def skip_scaling(bits: Bits, lists: int) -> None:
    """Skip scaling lists (7.3.2.1.1.1)."""
    for index in range(lists):
        if not bits.take():
            continue
        last = following = 8
        for _ in range(16 if index < 6 else 64):
            if following:
                following = (last + bits.signed()) % 256
            last = following or last


def skip_order(bits: Bits) -> None:
    """Skip how the order of showing is coded (7.3.2.1.1)."""
    kind = bits.unsigned()
    if kind == 0:
        bits.unsigned()
    elif kind == 1:
        bits.take()
        bits.signed()
        bits.signed()
        for _ in range(min(bits.unsigned(), 255)):
            bits.signed()


class FieldSlices:
    """Watch of the packets of a stream of H.264 in coding order, some of which may hold one field of a picture each.

    Args:
        header: Parameter sets of the container (avcC or annex B), b"" for none.
    """

    def __init__(self, header: bytes) -> None:
        self._prefix = prefix_bytes(header, "h264")
        # Of a sequence set: bits of a picture's number, separate planes, and whether fields may be coded apart.
        self._sequences: dict[int, tuple[int, bool, bool]] = {}
        self._sequence_of: dict[int, int] = {}  # by picture set
        units = nal_units(header, None) if self._prefix is None else record_units(header, "h264")
        for unit in units:
            self._take_set(unit)
        # Sets of a container (avcC) hold for all of it.
        has_fields = any(fields for _, _, fields in self._sequences.values())
        self._looks = self._prefix is None or not self._sequences or has_fields

    def are_in(self, packet: bytes) -> bool:
        """Return whether the first slice of a packet is of a field; False where it cannot be read."""
        for unit in nal_units(packet, self._prefix) if self._looks else ():
            if unit[0] & 31 in _SLICES:
                try:
                    return self._is_of_field(Bits(without_emulation(unit[1:_SLICE_BYTES])))
                except ParameterError:
                    return False
            self._take_set(unit)
        return False

    def _is_of_field(self, bits: Bits) -> bool:
        bits.unsigned()
        bits.unsigned()
        number_bits, has_planes, has_fields = self._sequences.get(
            self._sequence_of.get(bits.unsigned(), -1), (0, False, False)
        )
        bits.take(2 * has_planes + number_bits)
        return has_fields and bool(bits.take())

    def _take_set(self, unit: bytes) -> None:
        try:
            if unit[0] & 31 == _SPS:
                self._take_sequence(Bits(without_emulation(unit[1:_READ_BYTES])))
            elif unit[0] & 31 == _PPS:
                bits = Bits(without_emulation(unit[1:_SLICE_BYTES]))
                set_id = bits.unsigned()
                self._sequence_of[set_id] = bits.unsigned()
        except ParameterError:
            return

    def _take_sequence(self, bits: Bits) -> None:
        set_id, number_bits, has_planes, _ = read_sequence(bits)
        bits.unsigned()
        bits.unsigned()
        self._sequences[set_id] = number_bits, has_planes, not bits.take()


def read_sequence(bits: Bits) -> tuple[int, int, bool, bool]:
    """Read a sequence parameter set up to its size (7.3.2.1.1).

    Returns:
        Its ID, the bits of a picture's number, whether planes are coded apart, and whether numbers may be left out.
    """
    profile = bits.take(8)
    bits.take(16)
    set_id, has_planes = bits.unsigned(), False
    if profile in _WITH_CHROMA:
        chroma = bits.unsigned()
        has_planes = chroma == 3 and bool(bits.take())
        bits.unsigned()
        bits.unsigned()
        bits.take()
        if bits.take():
            skip_scaling(bits, 12 if chroma == 3 else 8)
    number_bits = 4 + bits.unsigned()
    skip_order(bits)
    bits.unsigned()
    return set_id, min(number_bits, 16), has_planes, bool(bits.take())
