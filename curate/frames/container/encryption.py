"""Encryption of a film or of its sound, by what its container states and by its packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from av.packet import Packet
from av.stream import Stream

_MOST_INDEX_BYTES = 1 << 26
_MOST_BOXES = 1000  # top-level boxes that are looked at
_HEAD_BYTES = 1 << 20  # of a file whose container has no index
_EBML = b"\x1a\x45\xdf\xa3"
_CLUSTER = b"\x1f\x43\xb6\x75"
_CONTENT_ENCODINGS, _CONTENT_ENCRYPTION = b"\x6d\x80", b"\x50\x35"
_LONGEST_ENCODINGS = 64  # bytes before the encryption in its element
_TS_PACKETS = ((188, 0), (192, 4), (204, 0))  # size, and place of the first byte
_SYNC, _SYNCS = 0x47, 8  # first byte, and packets in a row that show it
_SAMPLE_AES_H264 = 0xDB  # type of a stream
_FLV, _FLV_PICTURES = b"FLV", 9
_MOST_SCRAMBLED = 0.1  # share of packets in a broken file that may look scrambled


class EncryptedError(Exception):
    """Signal of the decoder that a packet is encrypted."""


def encrypted_words(scheme: str) -> str:
    """Return the reason why an encrypted film gives no clips."""
    return f"is encrypted ({scheme}), and no key is known here: decrypt it first"


def is_encrypted(packet: Packet[Any]) -> bool:
    """Return whether the container states that a packet is encrypted; of MP4 (ISO/IEC 23001-7) and WebM."""
    return packet.has_sidedata("encryption_info") or names_key(packet.stream)


def names_key(stream: Stream) -> bool:
    """Return whether a stream of Matroska or WebM names the key of its encryption."""
    return "enc_key_id" in stream.metadata


def encryption(file: BinaryIO) -> str | None:
    """Return words for the encryption that a file states, or None without it.

    Known are Common Encryption in MP4 and MOV (ISO/IEC 23001-7), Matroska's, scrambled packets of MPEG-TS, SAMPLE-AES
    in it (HLS), and Flash Access in FLV. A film that decodes may state it too, for some of its packets.
    """
    for kind, offset, size in boxes(file):
        if kind == b"moov":
            file.seek(offset)
            return _of_index(file.read(min(size, _MOST_INDEX_BYTES)))
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if head.startswith(_EBML):
        return encrypted_words("Matroska") if _of_matroska(head) else None
    if head.startswith(_FLV):
        return encrypted_words("FLV") if _is_filtered(head) else None
    packets = _ts_packets(head)
    if any(map(_names_sample_aes, packets)):
        return encrypted_words("SAMPLE-AES")
    scrambled = sum(packet[3] >= 0x80 for packet in packets)
    return encrypted_words("scrambled TS") if scrambled > _MOST_SCRAMBLED * len(packets) else None


def is_scrambled(data: bytes | memoryview, pid: int) -> bool:
    """Return whether many packets of a stream of MPEG-TS are scrambled, wherever they begin to be.

    Args:
        data: Bytes of a file whose packets begin at once.
        pid: Identifier of the stream.
    """
    for size, offset in _TS_PACKETS:
        if len(data) < size * _SYNCS:
            continue
        heads = np.frombuffer(data, np.uint8)[: len(data) // size * size].reshape(-1, size)[
            :, offset : offset + 4
        ]
        if (heads[:_SYNCS, 0] == _SYNC).all():
            is_own = (heads[:, 0] == _SYNC) & (heads[:, 1] & 0x1F == pid >> 8) & (heads[:, 2] == pid & 0xFF)
            own = heads[is_own]
            return bool(len(own)) and float((own[:, 3] >= 0x80).mean()) > _MOST_SCRAMBLED
    return False


def boxes(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, place and size of the top-level boxes of a file, up to the first that is none."""
    end, offset = file.seek(0, 2), 0
    for _ in range(_MOST_BOXES):
        file.seek(offset)
        header = file.read(16)
        size, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if size < 8 or offset + size > end:
            return
        yield kind, offset, size
        offset += size


def _of_index(index: bytes) -> str | None:
    if b"encv" not in index and b"drmi" not in index:
        return None
    scheme = index[index.find(b"schm") + 8 :][:4] if b"schm" in index else b""
    return encrypted_words(scheme.decode() if scheme.isalnum() else "unknown scheme")


def _of_matroska(head: bytes) -> bool:
    head = head.partition(_CLUSTER)[0]
    offset = head.find(_CONTENT_ENCODINGS)
    while offset >= 0:
        if _CONTENT_ENCRYPTION in head[offset + 2 : offset + 2 + _LONGEST_ENCODINGS]:
            return True
        offset = head.find(_CONTENT_ENCODINGS, offset + 1)
    return False


def _is_filtered(head: bytes) -> bool:
    """Return True if a tag of pictures in FLV states a filter, which is its encryption."""
    offset = int.from_bytes(head[5:9], "big") + 4
    while offset + 4 <= len(head):
        kind = head[offset]
        if kind & 0x1F == _FLV_PICTURES:
            return bool(kind & 0x20)
        offset += int.from_bytes(head[offset + 1 : offset + 4], "big") + 15
    return False


def _ts_packets(head: bytes) -> list[bytes]:
    """Return the packets of MPEG-TS that begin where they should; none for another file."""
    for size, offset in _TS_PACKETS:
        for begin in range(offset, offset + size):
            syncs = head[begin::size]
            if len(syncs) >= _SYNCS and set(syncs[:_SYNCS]) == {_SYNC}:
                packets = (head[start : start + 188] for start in range(begin, len(head) - 187, size))
                return [packet for packet in packets if packet[0] == _SYNC]
    return []


def _names_sample_aes(packet: bytes) -> bool:
    """Return True if a packet of TS holds a program map with H.264 under SAMPLE-AES."""
    begins, field = packet[1] & 0x40, packet[3] >> 4 & 3  # what lies before the payload
    offset = 5 + packet[4] if field == 3 else 4
    if not begins or field not in (1, 3) or offset >= len(packet):
        return False
    section = packet[offset + 1 + packet[offset] :]
    if len(section) < 12 or section[0] != 2 or section[1] & 0xB0 != 0xB0:
        return False
    end = min(len(section), 3 + (int.from_bytes(section[1:3], "big") & 0xFFF) - 4)
    offset = 12 + (int.from_bytes(section[10:12], "big") & 0xFFF)
    while offset + 5 <= end:
        if section[offset] == _SAMPLE_AES_H264:
            return True
        offset += 5 + (int.from_bytes(section[offset + 3 : offset + 5], "big") & 0xFFF)
    return False
