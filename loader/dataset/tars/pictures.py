"""Extent of pictures: the first one of a file of several (views, gain maps, joined files), and cut-off files."""

import re

_JPEG, _PNG, _WEBP = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF"
_GIFS = (b"GIF87a", b"GIF89a")
_BEGIN, _END = 0xD8, 0xD9
_MOST_PADDING = 1 << 16

_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers of JPEG without a length: ITU-T T.81, table B.1."""

_BEHIND_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]", re.DOTALL)
"""Next marker behind entropy-coded data, in which 0xFF is followed by a zero or a restart: ITU-T T.81, B.1.1.5."""


class CutOffError(ValueError):
    """Signal that a picture lacks its last part, which FFmpeg fills with what is no picture, or leaves out."""


def first_picture(media: bytes | memoryview) -> bytes | memoryview:
    """Return the bytes of the first picture of a JPEG, PNG or WebP file, and of another file all bytes.

    Further pictures of MPO and Ultra HDR are other views or gain maps. FFmpeg would show them as further frames.

    Raises:
        CutOffError: a JPEG without an end, as Pillow and OpenCV refuse it, or a GIF that ends within a block.
    """
    end = _end_of_first(media)
    if end is not None and end > len(media) and media[:1] == _JPEG[:1]:
        raise CutOffError("its JPEG has no end")
    if bytes(media[:6]) in _GIFS and _ends_within_block(media):
        raise CutOffError("its GIF ends within a picture")
    return media if end is None or end >= len(media) else memoryview(media)[:end]


def is_animated_webp(media: bytes | memoryview) -> bool:
    """Return whether a WebP file states an animation (RFC 9649, 2.7.1), which FFmpeg does not decode."""
    head = bytes(media[:21])
    return head[:4] == _WEBP and head[8:16] == b"WEBPVP8X" and bool(head[20] & 2)


def has_further_picture(media: bytes | memoryview) -> bool:
    """Return whether another picture of the same kind lies behind the first one; zeros may lie between them."""
    end = _end_of_first(media)
    if end is None or end >= len(media):
        return False
    kind = next(kind for kind in (_JPEG, _PNG, _WEBP) if bytes(media[: len(kind)]) == kind)
    return bytes(media[end : end + _MOST_PADDING]).lstrip(b"\0").startswith(kind)


def _end_of_first(media: bytes | memoryview) -> int | None:
    """Return the end of the first picture, beyond the bytes for one that is cut off; None where it is not known."""
    head = bytes(media[:12])
    if head.startswith(_JPEG):
        return _end_of_jpeg(media)
    if head.startswith(_PNG):
        return _end_of_png(media)
    if head.startswith(_WEBP) and head[8:] == b"WEBP":
        size = int.from_bytes(head[4:8], "little")
        return 8 + size + size % 2
    return None


def _end_of_jpeg(media: bytes | memoryview) -> int | None:
    at = 2
    while at + 2 <= len(media):
        if media[at] != 0xFF:
            return None  # damaged; the decoder sees what there is
        kind = media[at + 1]
        if kind == _END:
            return at + 2
        if kind == _BEGIN:  # the first one is cut off
            return at
        if kind == 0xFF or kind in _ALONE:
            at += 1 if kind == 0xFF else 2
            continue
        at += 2 + int.from_bytes(media[at + 2 : at + 4], "big")
        if kind == 0xDA:
            marker = _BEHIND_SCAN.search(media, at)
            if marker is None:
                break
            at = marker.start()
    return len(media) + 1


def _ends_within_block(media: bytes | memoryview) -> bool:
    """Return whether a GIF ends within a block: GIF89a, sections 15 to 27. Its last byte may be missing."""
    at = 13 + _colours(media, 10)
    while at < len(media):
        kind = media[at]
        if kind == 0x2C:  # a picture, with a table of colours and the width of its codes
            at += 11 + _colours(media, at + 9)
        elif kind == 0x21:  # an extension
            at += 2
        else:
            return False
        while at < len(media) and media[at]:
            at += 1 + media[at]
        at += 1
    return at > len(media)


def _colours(media: bytes | memoryview, at: int) -> int:
    """Return the bytes of the table of colours that the flags at a byte announce."""
    flags = media[at] if at < len(media) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _end_of_png(media: bytes | memoryview) -> int | None:
    at = len(_PNG)
    while at + 12 <= len(media):
        kind = bytes(media[at + 4 : at + 8])
        at += 12 + int.from_bytes(media[at : at + 4], "big")
        if kind == b"IEND":
            return at
    return None
