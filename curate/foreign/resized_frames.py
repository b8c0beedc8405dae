"""Frames between key frames that have a size of their own (reference scaling): VP9 and AV1, by their headers."""

from collections.abc import Iterator
from dataclasses import dataclass

from reelweave.loader.dataset.samples.frames.vp9_sizes import frames_of, stated_size

SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6  # obu_type of the AV1 specification, 6.2.2
_KEY, _SWITCH = 0, 3  # frame_type of the AV1 specification, 6.8.2
_SELECT = 2  # a choice that each frame makes anew
_HEADER_BYTES = 64  # in which all lies that is read of a frame


class _Bits:
    """Bits of a header, the highest first; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int = 1) -> int:
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1) if self._left >= 0 else 0


def resizes_vp9(packet: bytes) -> bool:
    """Return whether a frame in a packet of VP9 states a size without being a key frame: specification, 7.2."""
    sizes = map(stated_size, frames_of(packet))
    return any(size is not None and not size.is_key for size in sizes)


@dataclass(frozen=True)
class _Sequence:
    """Fields of a sequence header of AV1 that decide how headers of frames are read."""

    is_still: bool
    time_bits: int
    id_bits: int
    screen: int
    integers: int


class Av1Sizes:
    """Headers of the frames of one AV1 stream."""

    def __init__(self) -> None:
        self._sequence: _Sequence | None = None

    def resizes(self, packet: bytes) -> bool:
        """Return whether a frame in a packet overrides the size of the sequence: AV1 specification, 5.9.2."""
        found = False
        for kind, content in open_units(packet):
            if kind == SEQUENCE:
                self._sequence = _sequence(_Bits(content))
            elif kind in (_FRAME_HEADER, _FRAME) and self._sequence is not None:
                found |= _overrides(_Bits(content[:_HEADER_BYTES]), self._sequence)
        return found


def open_units(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each unit of a packet of AV1: AV1 specification, 5.3."""
    at = 0
    while at < len(packet):
        first, begin = packet[at], at + 1 + (packet[at] >> 2 & 1)
        size, shift = 0, 0
        if not first & 2:  # without a size it reaches to the end
            size = len(packet) - begin
        while first & 2 and begin < len(packet):
            byte, begin = packet[begin], begin + 1
            size, shift = size | (byte & 0x7F) << shift, shift + 7
            if not byte & 0x80:
                break
        at = begin + size
        yield first >> 3 & 15, packet[begin:at]


def _sequence(bits: _Bits) -> _Sequence:
    """Read a sequence header: AV1 specification, 5.5.1."""
    bits.take(4)
    if bits.take():
        return _Sequence(True, 0, 0, 0, 0)
    # Operating points, each with parts of its own length.
    time_bits, delay_bits = _timing(bits)
    has_delay = bits.take()
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take()
        if delay_bits and bits.take():
            bits.take(2 * delay_bits + 1)
        if has_delay and bits.take():
            bits.take(4)
    # Largest size; then the tools that change how frame headers are read.
    width, height = bits.take(4) + 1, bits.take(4) + 1
    bits.take(width + height)
    id_bits = bits.take(4) + 2 + bits.take(3) + 1 if bits.take() else 0
    bits.take(3 + 4)
    if bits.take():
        bits.take(2)
    screen = _SELECT if bits.take() else bits.take()
    integers = _SELECT if not screen or bits.take() else bits.take()
    return _Sequence(False, time_bits, id_bits, screen, integers)


def _timing(bits: _Bits) -> tuple[int, int]:
    """Return the bits of a frame's time, and of a decoder's delay; 0 for none: AV1 specification, 5.5.3 and 5.5.4."""
    if not bits.take():
        return 0, 0
    bits.take(64)
    is_equal = bits.take()
    if is_equal:
        zeros = 0
        while zeros < 32 and not bits.take():
            zeros += 1
        bits.take(zeros)
    if not bits.take():
        return 0, 0
    delay_bits = bits.take(5) + 1
    bits.take(32 + 5)
    time_bits = bits.take(5) + 1
    return (0 if is_equal else time_bits), delay_bits


def _overrides(bits: _Bits, sequence: _Sequence) -> bool:
    if sequence.is_still or bits.take():  # an earlier frame is shown
        return False
    kind, is_shown = bits.take(2), bits.take()
    bits.take(sequence.time_bits if is_shown else 1)
    if kind == _SWITCH:
        return True
    if not (kind == _KEY and is_shown):
        bits.take()
    bits.take()
    has_screen = bits.take() if sequence.screen == _SELECT else sequence.screen
    if has_screen and sequence.integers == _SELECT:
        bits.take()
    bits.take(sequence.id_bits)
    return bool(bits.take())
