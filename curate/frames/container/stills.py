"""Still pictures that are no films, and the films that phones put behind some of them (motion photos)."""

from __future__ import annotations

import re
from typing import BinaryIO

from reelweave.curate.frames.container.encryption import boxes

AVIF = "an AVIF picture"
_STILLS = {
    b"heic": "a HEIC picture",
    b"heix": "a HEIC picture",
    b"avif": AVIF,
    b"mif1": "a HEIF picture",
    b"msf1": "a HEIF picture",
}
"""Names of pictures by the brands of their files, the first that holds: ISO/IEC 23008-12, 10."""
_FILM = re.compile(rb"\0\0\0[\x10-\xff]ftyp(?!heic|heix|avif|mif1)[a-zA-Z0-9 ]{4}")
_BLOCK = 1 << 20
_MOST_BYTES = 1 << 26  # in which a film begins
_OVERLAP = 16


def still_of_items(file: BinaryIO) -> str | None:
    """Return in words what a file of ISO/IEC 23008-12 is that holds pictures and no film, or None for others."""
    file.seek(0)
    head = file.read(64)
    words = next((words for brand, words in _STILLS.items() if brand in head[8:]), None)
    if head[4:8] != b"ftyp" or words is None:  # films are not looked through
        return None
    kinds = set[bytes]()
    for kind, _, _ in boxes(file):
        if kind in (b"moov", b"moof"):
            return None
        kinds.add(kind)
    return words if b"meta" in kinds else None


def has_tiles(file: BinaryIO) -> bool:
    """Return whether a picture of ISO/IEC 23008-12 may be put together of others: an item of type grid (6.6.2.3)."""
    file.seek(0)
    return b"grid" in file.read(_BLOCK).partition(b"mdat")[0]


def film_behind(file: BinaryIO) -> str:
    """Return words for the MP4 that lies behind a still picture, "" without one."""
    at = 4  # behind a beginning of its own
    while at < _MOST_BYTES:
        file.seek(at)
        block = file.read(_BLOCK)
        if match := _FILM.search(block):
            begin = at + match.start()
            return f"; a film lies behind it (a motion photo): `tail -c +{begin + 1} FILE >FILE.mp4` takes it out"
        if len(block) < _BLOCK:
            return ""
        at += _BLOCK - _OVERLAP
    return ""
