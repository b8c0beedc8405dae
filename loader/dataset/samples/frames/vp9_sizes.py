"""Sizes that frames of VP9 state, told before a decoder allocates them: libvpx takes any, up to 65536 x 65536."""

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from av.packet import Packet

MOST_PIXELS = 8192 * 8192
_HEADER_BYTES = 24
_KEY_SYNC, _RGB = 24, 7


class StatedSize(NamedTuple):
    """Size in the header of a frame, in pixels, and whether it is a key frame."""

    width: int
    height: int
    is_key: bool


def bound_packet(packet: "Packet[Any]", most_pixels: int = MOST_PIXELS) -> "Packet[Any]":
    """Return a packet of VP9 for libvpx, whose frames all state their number and have no more pixels than these.

    Behind a frame of a packet without an index libvpx looks for more of them, whose sizes nobody saw. So such a packet
    gets the index of its one frame. Side data, as an alpha, stay behind, and so does the mark of packets that an edit
    list leaves out: `is_left_out` tells whose frames are not shown.

    Raises:
        av.error.InvalidDataError: a frame has more pixels.
    """
    from av.packet import Packet

    if not packet.size:
        return packet
    data = bytes(packet)
    refuse_huge(data, most_pixels)
    single = Packet(data if _index_bytes(data) else data + _index_of(len(data)))
    single.pts, single.dts, single.duration = packet.pts, packet.dts, packet.duration
    if packet.time_base is not None:
        single.time_base = packet.time_base
    return single


def is_left_out(packet: "Packet[Any]", coded: "Packet[Any]") -> bool:
    """Return whether an edit list leaves out the frames of a packet, which was decoded as `bounded` made it."""
    return packet.is_discard and not coded.is_discard


def refuse_huge(data: bytes, most_pixels: int = MOST_PIXELS) -> None:
    """Raise where a frame of a packet has more pixels than are decoded.

    Raises:
        av.error.InvalidDataError: it has.
    """
    import av

    for frame in frames_of(data):
        size = stated_size(frame)
        if size is not None and size.width * size.height > most_pixels:
            raise av.error.InvalidDataError(errno.EINVAL, f"a frame states {size.width}x{size.height} pixels")


def frames_of(packet: bytes) -> Iterator[bytes]:
    """Yield the frames of a packet, which may be a superframe: VP9 specification, annex B."""
    index = _index_bytes(packet)
    if not index:
        yield packet
        return
    at, width = 0, (packet[-1] >> 3 & 3) + 1
    for begin in range(len(packet) - index + 1, len(packet) - 1, width):
        size = int.from_bytes(packet[begin : begin + width], "little")
        yield packet[at : at + size]
        at += size


def _index_bytes(packet: bytes) -> int:
    """Return the size of the index of a superframe; 0 for a packet of one frame."""
    last = packet[-1] if packet else 0
    index = 2 + ((last & 7) + 1) * ((last >> 3 & 3) + 1)
    is_index = last & 0xE0 == 0xC0 and len(packet) >= index and packet[-index] == last
    return index if is_index else 0


def _index_of(size: int) -> bytes:
    """Return the index of one frame of this size, in bytes."""
    mark = bytes([0xC0 | 3 << 3])
    return mark + size.to_bytes(4, "little") + mark


def stated_size(frame: bytes) -> StatedSize | None:
    """Return the size that a frame states; None for one as large as a reference: specification, 6.2 and 7.2."""
    bits = _Bits(frame[:_HEADER_BYTES])
    bits.take(2)
    profile = bits.take() + 2 * bits.take()
    if profile == 3:
        bits.take()
    if bits.take():  # an earlier frame is shown
        return None
    is_inter, is_shown, is_resilient = bits.take(), bits.take(), bits.take()
    if not is_inter:
        _skip_colours(bits, profile)
        return StatedSize(bits.take(16) + 1, bits.take(16) + 1, True)
    intra_only = 0 if is_shown else bits.take()
    bits.take(0 if is_resilient else 2)
    if intra_only:
        if profile:
            _skip_colours(bits, profile)
        else:
            bits.take(_KEY_SYNC)
        bits.take(8)
        return StatedSize(bits.take(16) + 1, bits.take(16) + 1, False)
    bits.take(8 + 3 * 4)
    if any(bits.take() for _ in range(3)):  # as large as one of its references
        return None
    return StatedSize(bits.take(16) + 1, bits.take(16) + 1, False)


def _skip_colours(bits: "_Bits", profile: int) -> None:
    """Skip the code of synchronization and the configuration of colours."""
    bits.take(_KEY_SYNC + (profile >= 2))
    if bits.take(3) != _RGB:
        bits.take(1 + 3 * (profile & 1))
    elif profile & 1:
        bits.take()


class _Bits:
    """Reader of bits, the highest first; 0 behind the end."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int = 1) -> int:
        """Return the next bits as a number."""
        self._left -= count
        shifted = self._value >> self._left if self._left >= 0 else self._value << -self._left
        return shifted & ((1 << count) - 1)
