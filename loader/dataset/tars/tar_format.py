"""Parsing of tar headers of any writer: USTAR, GNU long names and large sizes, PAX."""

import re
from dataclasses import dataclass

TAR_BLOCK = 512
MAX_EXTENSION_BYTES = 1 << 20
"""Maximum size of a long name or PAX records, above any writer's need, so that damaged sizes take no memory."""

# Patterns of webdataset and Megatron-Energon; names that do not match belong to no sample.
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")

_REGULAR = b"\x00" + b"07"
_WITHOUT_CONTENT = b"123456"
_EXTENSIONS = b"LKxgX"


class TarError(Exception):
    """Fault in the bytes of a tar."""


@dataclass(slots=True)
class Extension:
    """Facts of extension headers about the next member; empty for most members."""

    name: str | None = None
    size: int | None = None

    def add(self, kind: int, content: bytes) -> None:
        """Add the content of one extension header.

        Raises:
            TarError: the header is damaged, or describes a sparse file.
        """
        if kind == ord("L"):
            self.name = _text(content.partition(b"\0")[0])
        elif kind in b"xX":
            records = _pax_records(content)
            if any(name.startswith(b"GNU.sparse") for name in records):
                raise TarError("a sparse file, which has no content in one piece")
            if b"path" in records:
                self.name = _text(records[b"path"])
            if b"size" in records:
                self.size = _number(records[b"size"], 10)


def is_extension(kind: int) -> bool:
    """Return whether headers of this type describe the next member."""
    return kind in _EXTENSIONS


def fields(header: bytes) -> tuple[str, int, int]:
    """Return name, content size in bytes and type flag of a header of 512 bytes.

    Raises:
        TarError: the size is no number.
    """
    end = header.find(0, 0, 100)
    name = header[: end if end >= 0 else 100]
    # GNU's own format stores times where USTAR has the first part of a long name.
    if header[345] and header[257:263] == b"ustar\0":
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    kind = header[156]
    if kind in _WITHOUT_CONTENT:
        return _text(name), 0, kind
    if kind == ord("S"):
        raise TarError("a sparse file, which has no content in one piece")
    if header[124] & 0x80:
        size = int.from_bytes(header[125:136], "big")
        if header[124] != 0x80:
            raise TarError("a header whose size is no number")
    else:
        size = _number(header[124:136].strip(b"\0 ") or b"0", 8)
    return _text(name), size, kind


def check_sum(header: bytes) -> None:
    """Check the checksum of a header.

    Raises:
        TarError: the checksum is wrong.
    """
    stated = _number(header[148:156].strip(b"\0 ") or b"0", 8)
    fields = header[:148] + b"        " + header[156:]
    total = sum(fields)
    # Some old writers summed signed bytes.
    if stated not in (total, total - 256 * sum(byte > 127 for byte in fields)):
        raise TarError("no header of a tar")


def key_and_suffix(name: str, kind: int) -> tuple[str, str] | None:
    """Return the key of a member's sample and its suffix; None for folders, links and members of no sample.

    By the rule of webdataset the key ends before the first dot of the file name, and the suffix is the rest in lower
    case.
    """
    if kind not in _REGULAR or (match := _KEY.match(name)) is None or _META.match(name):
        return None
    key, suffix = match.groups()
    return key, suffix.lower()


def padded_size(size: int) -> int:
    """Return the size in a tar of content with this size, in bytes."""
    return -(-size // TAR_BLOCK) * TAR_BLOCK


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _number(digits: bytes, base: int) -> int:
    # int() accepts signs and underscores, tar does not.
    if not digits.isdigit():
        raise TarError("a header whose size is no number")
    try:
        return int(digits, base)
    except ValueError as error:
        raise TarError("a header whose size is no number") from error


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Parse records of the form LENGTH, space, NAME=VALUE, newline; the length counts all of it."""
    records = {}
    at = 0
    while at < len(content) and content[at]:
        digits, _, _ = content[at : at + 20].partition(b" ")
        length = _number(digits, 10)
        record = content[at + len(digits) + 1 : at + length]
        if not record.endswith(b"\n") or at + length > len(content):
            raise TarError("PAX records that are damaged")
        name, _, value = record[:-1].partition(b"=")
        records[name] = value
        at += length
    return records
