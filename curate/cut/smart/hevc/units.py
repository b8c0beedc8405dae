"""NAL units of HEVC: types, layers, and supplemental enhancement information (ITU-T H.265, 7.3.1 and 7.3.5)."""

from __future__ import annotations

from collections.abc import Iterable

from reelweave.curate.cut.smart.bits import with_emulation
from reelweave.loader.dataset.samples.frames.bits import ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import without_emulation

RADL, RASL = (6, 7), (8, 9)
"""Leading pictures that decode without pictures before their entry, and those that do not (table 7-1)."""
BLA, IDR, CRA = range(16, 19), (19, 20), 21
BLA_WITHOUT_LEADING = 18
ENTRIES = range(16, 22)
"""Types at which decoding may begin."""
IRAP = range(16, 24)
SLICES = range(32)
RESERVED = frozenset({*range(10, 16), *range(22, 32)})
VPS, SPS, PPS, DELIMITER, END_OF_SEQUENCE, END_OF_STREAM, FILLER, SEI, SUFFIX_SEI = range(32, 41)

HEADER_BYTES = 2

MASTERING, LEVELS = 137, 144
"""payloadType of the mastering display's colour volume and of the content's light level (annex D)."""
LIGHT = frozenset({MASTERING, LEVELS})
PASSING = frozenset({0, 1, 5, 6, 129, 130})
"""Types that say nothing of how pictures look: times, recovery, active sets, and an encoder's own words."""
UNCARRIED = frozenset({148, 149})
"""Types of the surroundings and of the volume of colours, which no encoder is told: encoded clips lack them too."""
_REGISTERED = 4
_CAPTIONS = b"\xb5\0\x31"  # of ATSC, by country and provider (ITU-T T.35)
_STOP = b"\x80"
_MOST_MESSAGES = 4096
_CUT_OFF = "its supplemental information is cut off"


def kind_of(unit: bytes) -> int:
    """Return the type of a NAL unit."""
    return unit[0] >> 1 & 63


def layer_of(unit: bytes) -> int:
    """Return the layer of a NAL unit; 0 for the pictures that every decoder shows."""
    return (unit[0] & 1) << 5 | unit[1] >> 3


def payloads(unit: bytes) -> list[tuple[int, bytes]]:
    """Return type and bytes of each message of supplemental enhancement information.

    Raises:
        ParameterError: It is cut off, or holds too many.
    """
    data, begin = without_emulation(unit[HEADER_BYTES:]), 0
    messages: list[tuple[int, bytes]] = []
    while data[begin : begin + 2] not in (b"", _STOP):
        kind, begin = _take_number(data, begin)
        size, begin = _take_number(data, begin)
        if begin + size > len(data):
            raise ParameterError(_CUT_OFF)
        if len(messages) == _MOST_MESSAGES:
            raise ParameterError("its supplemental information holds too many messages")
        messages.append((kind, data[begin : begin + size]))
        begin += size
    return messages


def _take_number(data: bytes, begin: int) -> tuple[int, int]:
    """Return a number, of which each byte of 255 goes on in the next, and where it ends."""
    end = begin
    while data[end : end + 1] == b"\xff":
        end += 1
    if end >= len(data):
        raise ParameterError(_CUT_OFF)
    return 255 * (end - begin) + data[end], end + 1


def without_uncarried(unit: bytes) -> bytes | None:
    """Return supplemental information without what the frames beside copies cannot have, or None where nothing is left.

    Such are metadata that change with the pictures, as those of HDR10+. Captions stay.

    Raises:
        ParameterError: It is cut off.
    """
    messages = payloads(unit)
    lasting = [(kind, content) for kind, content in messages if _lasts(kind, content)]
    if len(lasting) == len(messages):
        return unit
    return unit[:HEADER_BYTES] + with_emulation(_written(lasting) + _STOP) if lasting else None


def _lasts(kind: int, content: bytes) -> bool:
    if kind == _REGISTERED:
        return content.startswith(_CAPTIONS)
    return kind not in UNCARRIED


def _written(messages: Iterable[tuple[int, bytes]]) -> bytes:
    parts = []
    for kind, content in messages:
        for size in (kind, len(content)):
            parts.append(b"\xff" * (size // 255) + bytes((size % 255,)))
        parts.append(content)
    return b"".join(parts)
