"""Order in which pictures of HEVC are shown, by their slices' headers: whatever time stamps and headers say of it.

ITU-T H.265: sequence parameter sets 7.3.2.2, picture parameter sets 7.3.2.3, slices 7.3.6.1, order of pictures 8.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_units,
    prefix_bytes,
    record_units,
    without_emulation,
)

_VCL, _IRAP, _IDR, _BLA, _SPS, _PPS, _ENDS = (
    range(32),
    range(16, 24),
    (19, 20),
    range(16, 19),
    33,
    34,
    (36, 37),
)
_UNREFERENCED = 14  # last type of the pictures that none of their sub-layer refers to, if it is even
_LEADING = range(6, 10)
_HEADER_BYTES = 2
_READ_BYTES = 4096  # of a set
_SLICE_BYTES = 64
_PROFILE_BITS = 96  # of profile, tier and level of the whole stream
_MOST_ORDER_BITS = 16


class PictureOrder:
    """Reader of the order of pictures, packet by packet in coding order.

    Args:
        header: Extradata of the stream: an hvcC record, NAL units with start codes, or nothing.
    """

    def __init__(self, header: bytes) -> None:
        self._prefix = prefix_bytes(header, "hevc")
        self._order_bits: dict[int, tuple[int, bool]] = {}  # of a sequence set: bits, and separate planes
        self._pictures: dict[
            int, tuple[int, bool, int]
        ] = {}  # of a picture set: sequence set, output flag, extra bits
        self._sequence, self._begins, self._before = -1, True, 0
        units = nal_units(header, None) if self._prefix is None else record_units(header, "hevc")
        for unit in units:
            if len(unit) > _HEADER_BYTES:
                self._take_set(unit)

    def position(self, packet: bytes) -> tuple[int, int] | None:
        """Return sequence and order of the picture in a packet, which rise as pictures are shown; None without one.

        Raises:
            ParameterError: The packet, or a set that it refers to, cannot be read.
        """
        position: tuple[int, int] | None = None
        for unit in nal_units(packet, self._prefix):
            kind = unit[0] >> 1 & 63
            if kind in _ENDS:
                self._begins = True
            elif len(unit) > _HEADER_BYTES and kind not in _VCL:
                self._take_set(unit)
            elif len(unit) > _HEADER_BYTES and position is None:
                position = self._slice_position(unit, kind)
        return position

    def _take_set(self, unit: bytes) -> None:
        kind = unit[0] >> 1 & 63
        bits = Bits(without_emulation(unit[_HEADER_BYTES:_READ_BYTES]))
        if kind == _SPS:
            bits.take(4)
            sub_layers = bits.take(3)
            bits.take(1 + _PROFILE_BITS)
            if sub_layers:
                present = [(bits.take(), bits.take()) for _ in range(8)][:sub_layers]
                for has_profile, has_level in present:
                    bits.take(88 * has_profile + 8 * has_level)
            set_id = bits.unsigned()
            planes = bits.take() if bits.unsigned() == 3 else 0
            for _ in range(2):  # width and height
                bits.unsigned()
            for _ in range(4 if bits.take() else 0):  # window
                bits.unsigned()
            for _ in range(2):  # depths
                bits.unsigned()
            order_bits = 4 + bits.unsigned()
            if order_bits > _MOST_ORDER_BITS:
                raise ParameterError("a parameter set is damaged")
            self._order_bits[set_id] = order_bits, bool(planes)
        elif kind == _PPS:
            set_id, sequence_id = bits.unsigned(), bits.unsigned()
            bits.take()
            self._pictures[set_id] = sequence_id, bool(bits.take()), bits.take(3)

    def _slice_position(self, unit: bytes, kind: int) -> tuple[int, int]:
        bits = Bits(without_emulation(unit[_HEADER_BYTES:_SLICE_BYTES]))
        if not bits.take():
            raise ParameterError("a packet does not begin with the first slice of a picture")
        if kind in _IRAP:
            bits.take()
        sequence_id, has_flag, extra_bits = self._pictures.get(bits.unsigned(), (-1, False, 0))
        if sequence_id not in self._order_bits:
            raise ParameterError("a slice refers to a parameter set that is not there")
        order_bits, has_planes = self._order_bits[sequence_id]
        # A sequence begins at pictures that forget all others, and at the first one.
        begins = kind in _IDR or kind in _BLA or self._begins
        if begins:
            self._sequence, self._begins, self._before = self._sequence + 1, False, 0
        order = 0
        if kind not in _IDR:
            bits.take(extra_bits)
            bits.unsigned()
            bits.take(has_flag + 2 * has_planes)
            low, size = bits.take(order_bits), 1 << order_bits
            high = 0 if begins else self._before - self._before % size
            if low < self._before % size and self._before % size - low >= size // 2:
                high += size
            elif low > self._before % size and low - self._before % size > size // 2:
                high -= size
            order = low if begins else high + low
        is_lowest = unit[1] & 7 == 1
        if is_lowest and not (kind <= _UNREFERENCED and kind % 2 == 0) and kind not in _LEADING:
            self._before = order
        return self._sequence, order


def shown_positions(header: bytes, packets: Iterable[bytes]) -> list[int] | None:
    """Return the place on screen of each packet's picture, in coding order; None where a packet cannot be read."""
    positions: list[tuple[int, int]] = []
    try:
        order = PictureOrder(header)
        for packet in packets:
            if (position := order.position(packet)) is not None:
                positions.append(position)
    except ParameterError:
        return None
    ranks = {position: rank for rank, position in enumerate(sorted(positions))}
    return [ranks[position] for position in positions]
