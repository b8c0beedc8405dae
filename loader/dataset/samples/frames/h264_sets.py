"""Sequence parameter sets of H.264 (ITU-T H.264), and pictures whose fields are coded apart."""

from __future__ import annotations

from typing import NamedTuple

from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_units,
    prefix_bytes,
    record_units,
    without_emulation,
)

SLICES = (1, 2, 5)
"""Types of units that begin a picture's slice."""
_SPS, _PPS = 7, 8
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


class H264Sequence(NamedTuple):
    """Part of a sequence parameter set that slices are read by.

    Attributes:
        number_bits: bits of a picture's number (``frame_num``).
        has_planes: True if colour planes are coded apart.
        allows_gaps: True if numbers may be left out.
        has_fields: True if fields may be coded apart.
    """

    number_bits: int
    has_planes: bool
    allows_gaps: bool
    has_fields: bool


class H264Sets:
    """Parameter sets of a stream so far.

    Args:
        header: parameter sets of the container (avcC or annex B), b"" for none.

    Attributes:
        prefix: bytes of a unit's length in packets; None: units begin with start codes.
        sequences: sequence sets by ID.
    """

    def __init__(self, header: bytes) -> None:
        self.prefix = prefix_bytes(header, "h264")
        self.sequences: dict[int, H264Sequence] = {}
        self._sequence_of: dict[int, int] = {}  # by picture set
        units = nal_units(header, None) if self.prefix is None else record_units(header, "h264")
        for unit in units:
            self.take(unit)

    def take(self, unit: bytes) -> None:
        """Take a unit that may be a parameter set; leave out one that cannot be read."""
        try:
            if unit[0] & 31 == _SPS:
                set_id, sequence = _read_sequence(Bits(without_emulation(unit[1:_READ_BYTES])))
                self.sequences[set_id] = sequence
            elif unit[0] & 31 == _PPS:
                bits = Bits(without_emulation(unit[1:_SLICE_BYTES]))
                set_id = bits.unsigned()
                self._sequence_of[set_id] = bits.unsigned()
        except ParameterError:
            return

    def begin_slice(self, unit: bytes) -> tuple[Bits, H264Sequence | None]:
        """Return the bits of a slice's header from its picture's number on, and its sequence set; None: unknown.

        Raises:
            ParameterError: the header ends before.
        """
        bits = Bits(without_emulation(unit[1:_SLICE_BYTES]))
        bits.unsigned()
        bits.unsigned()
        sequence = self.sequences.get(self._sequence_of.get(bits.unsigned(), -1))
        if sequence is not None:
            bits.take(2 * sequence.has_planes)
        return bits, sequence


class FieldSlices:
    """Watch of the packets of a stream of H.264 in coding order, some of which may hold one field of a picture each.

    Args:
        header: Parameter sets of the container (avcC or annex B), b"" for none.
    """

    def __init__(self, header: bytes) -> None:
        self._sets = H264Sets(header)
        sequences = self._sets.sequences.values()
        # Sets of a container (avcC) hold for all of it.
        self._looks = (
            self._sets.prefix is None or not sequences or any(sequence.has_fields for sequence in sequences)
        )

    def are_in(self, packet: bytes) -> bool:
        """Return whether the first slice of a packet is of a field; False where it cannot be read."""
        for unit in nal_units(packet, self._sets.prefix) if self._looks else ():
            if unit[0] & 31 in SLICES:
                try:
                    bits, sequence = self._sets.begin_slice(unit)
                    if sequence is None:
                        return False
                    bits.take(sequence.number_bits)
                    return sequence.has_fields and bool(bits.take())
                except ParameterError:
                    return False
            self._sets.take(unit)
        return False


def _read_sequence(bits: Bits) -> tuple[int, H264Sequence]:
    """Read the ID and the begin of a sequence parameter set (7.3.2.1.1)."""
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
    number_bits = min(4 + bits.unsigned(), 16)
    skip_order(bits)
    bits.unsigned()
    allows_gaps = bool(bits.take())
    # Behind its size.
    bits.unsigned()
    bits.unsigned()
    return set_id, H264Sequence(number_bits, has_planes, allows_gaps, has_fields=not bits.take())
