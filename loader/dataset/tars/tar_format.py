"""Headers of tar members, whoever wrote them: USTAR, GNU long names and large sizes, PAX."""

import re
from dataclasses import dataclass

TAR_BLOCK = 512
MAX_EXTENSION_BYTES = 1 << 20
"""Of a long name or PAX records: more than any writer needs, so a damaged size takes no memory."""

# As webdataset and Megatron-Energon name them; a name that does not match belongs to no sample.
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")

_REGULAR = b"\x00" + b"07"
_WITHOUT_CONTENT = b"123456"
_EXTENSIONS = b"LKxgX"


class TarError(Exception):
    """What is wrong with the bytes of a tar, in words."""


@dataclass(slots=True)
class Extension:
    """What the headers before a member's own say of it; empty for most."""

    name: str | None = None
    size: int | None = None

    def add(self, kind: int, content: bytes) -> None:
        """Takes in the content of one extension header.

        Raises:
            TarError: it is damaged, or tells of a sparse file.
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
    """Whether a header of this type speaks of the next member."""
    return kind in _EXTENSIONS


def fields(header: bytes) -> tuple[str, int, int]:
    """Name, bytes of content and type flag that one header of 512 bytes states.

    Raises:
        TarError: its size is no number.
    """
    end = header.find(0, 0, 100)
    name = header[: end if end >= 0 else 100]
    # GNU's own format keeps times where USTAR has the first part of a long name.
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
    """Raises `TarError` when a header is not what its writer wrote."""
    stated = _number(header[148:156].strip(b"\0 ") or b"0", 8)
    others = header[:148] + b"        " + header[156:]
    found = sum(others)
    # Some old writers summed signed bytes.
    if stated not in (found, found - 256 * sum(byte > 127 for byte in others)):
        raise TarError("no header of a tar")


def key_and_suffix(name: str, kind: int) -> tuple[str, str] | None:
    """To which sample a member belongs, and as what; None for folders, links and what is no sample's.

    The rule of webdataset: the key ends before the first dot of the file's own name, the suffix is what
    comes behind it, in lower case.
    """
    if kind not in _REGULAR or (match := _KEY.match(name)) is None or _META.match(name):
        return None
    key, suffix = match.groups()
    return key, suffix.lower()


def padded(size: int) -> int:
    """Bytes that content of this size takes up in a tar."""
    return -(-size // TAR_BLOCK) * TAR_BLOCK


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _number(digits: bytes, base: int) -> int:
    # int() knows more spellings (signs, underscores) than tar does.
    if not digits.isdigit():
        raise TarError("a header whose size is no number")
    try:
        return int(digits, base)
    except ValueError as error:
        raise TarError("a header whose size is no number") from error


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Records, each of them LENGTH, a space, NAME=VALUE and a line end; the length counts all of it."""
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
