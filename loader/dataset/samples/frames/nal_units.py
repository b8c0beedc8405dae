"""NAL units in packets of H.264 and HEVC."""

from __future__ import annotations

from collections.abc import Iterator

_START = b"\0\0\1"
_STOP = b"\x80"  # bits behind the content of a unit


def prefix_bytes(header: bytes, codec: str) -> int | None:
    """Return the bytes of a length prefix, or None for start codes.

    Args:
        header: Parameter sets of the stream; a first byte of 1 means length prefixes (ISO/IEC 14496-15).
        codec: "h264" or "hevc".
    """
    at = 21 if codec == "hevc" else 4
    return (header[at] & 3) + 1 if header[:1] == b"\x01" and len(header) > at else None


def record_units(header: bytes, codec: str) -> Iterator[bytes]:
    """Yield the NAL units of a record of a sample entry (ISO/IEC 14496-15, 5.3.3 and 8.3.3) that are not empty.

    Args:
        header: An avcC or hvcC record, which may be cut off.
        codec: "h264" or "hevc".
    """
    is_hevc = codec == "hevc"
    at = 22 if is_hevc else 5
    groups = int.from_bytes(header[at : at + 1], "big") if is_hevc else 2
    at += is_hevc
    for group in range(groups):
        # A group of hevc has a type before its count; the first one of h264 has bits that are reserved.
        count = int.from_bytes(header[at + 1 : at + 3] if is_hevc else header[at : at + 1], "big")
        count &= 31 if not is_hevc and group == 0 else 0xFFFF
        at += 3 if is_hevc else 1
        for _ in range(count):
            if at >= len(header):
                return
            end = at + 2 + int.from_bytes(header[at : at + 2], "big")
            if unit := header[at + 2 : end]:
                yield unit
            at = end


def nal_units(packet: bytes, prefix: int | None) -> Iterator[bytes]:
    """Yield the NAL units of a packet that are not empty; arguments as of `nal_bounds`."""
    for _, begin, end in nal_bounds(packet, prefix):
        yield packet[begin:end]


def nal_bounds(packet: bytes, prefix: int | None) -> Iterator[tuple[int, int, int]]:
    """Yield of each NAL unit that is not empty where its prefix begins, where it begins itself, and where it ends.

    Args:
        packet: Packet, length-prefixed (ISO/IEC 14496-15) or with start codes (ITU-T H.264, annex B).
        prefix: Bytes of a length prefix; None for start codes.
    """
    at = 0 if prefix is not None else packet.find(_START)
    while at >= 0 and at + (prefix or 0) < len(packet):
        if prefix is None:
            begin, following = at + len(_START), packet.find(_START, at + len(_START))
            end = len(packet) if following < 0 else following
        else:
            begin = at + prefix
            end = following = begin + int.from_bytes(packet[at:begin], "big")
        if end > begin:
            yield at, begin, min(end, len(packet))
        at = following


def without_emulation(unit: bytes) -> bytes:
    """Return a NAL unit without the bytes that keep start codes out of it (ITU-T H.264, 7.4.1)."""
    return unit.replace(b"\0\0\3", b"\0\0")


def sei_messages(unit: bytes) -> tuple[list[tuple[int, bytes]], bool]:
    """Return type and payload of each SEI message (ITU-T H.264 and H.265, 7.3.2.3), and whether they fill their unit.

    Args:
        unit: NAL unit without its header.
    """
    data, at = without_emulation(unit).rstrip(b"\0"), 0
    found: list[tuple[int, bytes]] = []
    while at + 2 < len(data):
        values = []
        for _ in range(2):
            begin = at
            while at < len(data) and data[at] == 0xFF:
                at += 1
            if at >= len(data):
                return found, False
            values.append(255 * (at - begin) + data[at])
            at += 1
        kind, size = values
        found.append((kind, data[at : at + size]))
        at += size
    return found, bool(found) and data[at:] == _STOP
