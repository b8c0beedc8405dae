"""Checksums that S3 keeps of whole objects, computed over the bytes that arrived.

A read of a range is verified by no checksum of the store. So an object that is read from its begin to its end is
compared as a whole. Of an object that was written in parts the store may hold a checksum of checksums of its parts,
which says nothing without their sizes: it is not verified.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from reelweave.loader.base.compiled import compiled

_CRC32C, _CRC64NVME = 0x82F63B78, 0x9A6C9329AC4BC9B5
"""Polynomials with their bits reversed: RFC 3720, appendix B.4, and NVM Express NVM command set, 5.2.1.3.4."""

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_OF_PARTS = re.compile(r'"?[0-9a-f]{32}-[0-9]+"?')
_NONE = (None, "", "AES256")


class Checksum(Protocol):
    """Running checksum, as those of `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Take further bytes of the object."""

    def digest(self) -> bytes:
        """Return the checksum of the bytes so far."""


class WholeCheck:
    """Comparison of an object's bytes with the checksum that the store holds.

    Args:
        name: name of the checksum, for messages.
        running: checksum of no bytes.
        expected: checksum in the store.

    Attributes:
        name: see above.
        sure: False for an ETag, which is the MD5 of the bytes in AWS, and anything in another store.
    """

    def __init__(self, name: str, running: Checksum, expected: bytes) -> None:
        self.name, self._running, self._expected = name, running, expected
        self.sure = name != "ETag"

    def update(self, data: bytes) -> None:
        """Take the next bytes of the object."""
        self._running.update(data)

    def agrees(self) -> bool:
        """Return whether the bytes so far are the object."""
        return self._running.digest() == self._expected


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _TableCrc:
    """CRC of reversed bits that begins with ones and ends inverted."""

    def __init__(self, polynomial: int, size: int) -> None:
        self._table, self._size, self._ones = _crc_table(polynomial), size, (1 << 8 * size) - 1
        self._value = self._ones

    def update(self, data: bytes) -> None:
        self._value = int(_crc(self._table, np.uint64(self._value), np.frombuffer(data, np.uint8)))

    def digest(self) -> bytes:
        return (self._value ^ self._ones).to_bytes(self._size, "big")


def _crc_table(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return np.array(table, np.uint64)


@compiled
def _crc(table: Any, value: Any, data: Any) -> Any:
    eight, low = np.uint64(8), np.uint64(255)
    for byte in data:
        value = (value >> eight) ^ table[(value ^ np.uint64(byte)) & low]
    return value


_KINDS: Mapping[str, Callable[[], Checksum]] = {
    "ChecksumSHA256": hashlib.sha256,
    "ChecksumSHA1": lambda: hashlib.sha1(usedforsecurity=False),
    "ChecksumCRC64NVME": lambda: _TableCrc(_CRC64NVME, 8),
    "ChecksumCRC32C": lambda: _TableCrc(_CRC32C, 4),
    "ChecksumCRC32": _Crc32,
}


def whole_check(head: Mapping[str, Any]) -> WholeCheck | None:
    """Return the comparison with the checksum of a HEAD response; None where there is none of the whole object.

    Args:
        head: response to a HEAD that asked for checksums.
    """
    for name, begin in _KINDS.items():
        value = str(head.get(name) or "")
        if value and "-" not in value and _is_whole(head, name):
            try:
                expected = base64.b64decode(value, validate=True)
            except ValueError:
                continue
            return WholeCheck(name.removeprefix("Checksum"), begin(), expected)
    md5 = _MD5.fullmatch(str(head.get("ETag", "")))
    if md5 and head.get("ServerSideEncryption") in _NONE and not head.get("SSECustomerAlgorithm"):
        return WholeCheck("ETag", hashlib.md5(usedforsecurity=False), bytes.fromhex(md5[1]))
    return None


def _is_whole(head: Mapping[str, Any], name: str) -> bool:
    """Return whether a checksum is of the object, and not of the checksums of the parts of its upload."""
    if kind := head.get("ChecksumType"):
        return bool(kind == "FULL_OBJECT")
    # Stores that name no type may give the checksum of the parts without the usual -N, as moto does. The ETag
    # tells that there were parts. CRC-64/NVME is never of parts.
    return name == "ChecksumCRC64NVME" or not _OF_PARTS.fullmatch(str(head.get("ETag", "")))
