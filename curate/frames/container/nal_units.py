"""NAL units in packets of H.264 and HEVC."""

from __future__ import annotations

from collections.abc import Iterator


def prefix_bytes(header: bytes, codec: str) -> int | None:
    """Return the bytes of a length prefix, or None for start codes.

    Args:
        header: Parameter sets of the stream; a first byte of 1 means length prefixes (ISO/IEC 14496-15).
        codec: "h264" or "hevc".
    """
    at = 21 if codec == "hevc" else 4
    return (header[at] & 3) + 1 if header[:1] == b"\x01" and len(header) > at else None


def nal_units(packet: bytes, prefix: int | None) -> Iterator[bytes]:
    """Yield the NAL units of a packet that are not empty.

    Args:
        packet: Packet, length-prefixed (ISO/IEC 14496-15) or with start codes (ITU-T H.264, annex B).
        prefix: Bytes of a length prefix; None for start codes.
    """
    if prefix is None:
        yield from (unit for unit in packet.split(b"\0\0\1")[1:] if unit)
        return
    at = 0
    while at + prefix < len(packet):
        begin = at + prefix
        at = begin + int.from_bytes(packet[at:begin], "big")
        if at > begin:
            yield packet[begin:at]
