"""Films behind the first one of a file, and pictures of further codecs, of which demuxers read nothing."""

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from reelweave.curate.frames.container.edit_list import content_of, inner_boxes, track_id
from reelweave.curate.frames.container.encryption import boxes

_BEGINNINGS = {
    "flv": re.compile(rb"FLV\x01[\0-\x05]\0\0\0\x09"),
    "asf": re.compile(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"),
    "ivf": re.compile(rb"DKIF\0\0\x20\0"),
    "ogg": re.compile(rb"OggS\0\x02"),
    "apng": re.compile(rb"\x89PNG\r\n\x1a\n"),
}
"""Beginnings of films by the containers whose demuxers end before a second one, or take it for a packet."""

_OTHERS = re.compile(
    rb"\x1a\x45\xdf\xa3|RIFF....AVI |OggS\0\x02|FLV\x01|\x30\x26\xb2\x75\x8e\x66\xcf\x11|\x00\x00\x01\xba"
    rb"|\x47.{187}\x47.{187}\x47",
    re.DOTALL,
)
"""Beginnings of films in other containers behind the boxes of an MP4: Matroska, AVI, Ogg, FLV, ASF, MPEG-PS, TS."""
_OTHER_BYTES = 512

_BESIDE = 64
"""Bytes around the beginning of the last packet that are looked at."""
_BEHIND = 1 << 20
"""Bytes behind the last packet that are looked at."""
_MOST_INDEX_BYTES = 1 << 20  # of a fragment

_ENTRIES, _ENTRY = 8, 8
"""Bytes before the sample entries of a track, and of the head of each: ISO/IEC 14496-12, 8.5.2."""
_MOST_ENTRIES, _MOST_RUNS_BYTES = 64, 1 << 24
_ANY_KIND = (b"AV1x", b"AVup", b"apcn", b"apch", b"dvpp", b"dvcp", b"jpeg")
"""Kinds of a first entry behind which FFmpeg reads those of other kinds, too."""

_ENCRYPTED = (b"encv", b"enca")  # ISO/IEC 23001-7

_MOST_LISTED, _LEAST_BYTES = 0.5, 1 << 12
"""Share of the media data above which an index lists enough of it, and the least bytes that are worth a word."""
_MOST_SIZES_BYTES = 1 << 28
_LEAST_SAMPLE = 16


class FurtherFilm(NamedTuple):
    """Film that was joined to an MP4 or MOV file.

    Attributes:
        state: unread: it has an index of its own, which FFmpeg and players skip. tangled: its fragments begin anew in
            time, and FFmpeg sorts them among those of the first film.
        offset: Byte at which it begins; 0 where only its index tells it.
    """

    state: Literal["unread", "tangled"]
    offset: int


def further_film(file: BinaryIO) -> FurtherFilm | None:
    """Return the film that was joined to an MP4 or MOV file; None if there is none.

    An init segment that is repeated within one stream is no film.
    """
    top = list(boxes(file))
    indexes = [at for at, (kind, _, _) in enumerate(top) if kind == b"moov"]
    if not indexes:
        return None
    if len(indexes) < 2:
        _, offset, size = top[-1]
        file.seek(offset + size)
        return FurtherFilm("unread", offset + size) if _OTHERS.match(file.read(_OTHER_BYTES)) else None
    between = [kind for kind, _, _ in top[indexes[0] + 1 : indexes[1]]]
    if _is_of_fragments(between) and not any(kind == b"mdat" for kind, _, _ in top[indexes[1] :]):
        return None
    offset = next((offset for kind, offset, _ in top[indexes[0] :] if kind == b"ftyp"), 0)
    behind = _fragment_time(file, top[indexes[1] :])
    if behind is None:
        return FurtherFilm("unread", offset)
    before = _fragment_time(file, top[: indexes[1]][::-1])
    return FurtherFilm("tangled", offset) if before is not None and behind <= before else None


def _is_of_fragments(kinds: Sequence[bytes]) -> bool:
    """Return whether boxes behind an index are fragments of its film alone, whose last index is of all of them."""
    fragments = kinds.count(b"moof")
    return b"ftyp" not in kinds and fragments > 0 and kinds.count(b"mdat") <= fragments + 1


def unread_from(file: BinaryIO) -> int | None:
    """Return the byte at which an unread film begins in MP4 or MOV, 0 where only its index tells it; None if none."""
    further = further_film(file)
    return further.offset if further is not None and further.state == "unread" else None


def begins_behind(file: BinaryIO, container: str, last_packet: tuple[int, int]) -> int | None:
    """Return the byte at which a film begins behind the last packet that was read, or as that packet; None if none.

    Args:
        file: File of the film.
        container: Name of the container format in FFmpeg.
        last_packet: Offset and size of the last packet, bytes; the offset is negative where it is not known.
    """
    if container.startswith("mov,"):
        return unread_from(file)
    beginning, (offset, size) = _BEGINNINGS.get(container), last_packet
    if beginning is None or offset < 0:
        return None
    for begin, length in ((max(1, offset - _BESIDE), 2 * _BESIDE), (offset + size, _BEHIND)):
        file.seek(begin)
        if match := beginning.search(file.read(length)):
            return begin + match.start()
    return None


def _fragment_time(file: BinaryIO, top: list[tuple[bytes, int, int]]) -> int | None:
    """Return the time of the first fragment of these boxes in ticks (tfdt: ISO/IEC 14496-12, 8.8.12); None if none."""
    for kind, offset, size in top:
        if kind == b"moof":
            file.seek(offset)
            fragment = file.read(min(size, _MOST_INDEX_BYTES))
            at = fragment.find(b"tfdt") + 4
            length = 8 if fragment[at : at + 1] == b"\1" else 4
            return int.from_bytes(fragment[at + 4 : at + 4 + length], "big") if at >= 4 else 0
    return None


def unread_entries(file: BinaryIO) -> str | None:
    """Return words for pictures in MP4 and MOV that FFmpeg leaves out, since their sample entry is of another kind.

    It reads the first entry of a track, and those of its kind. None where no picture is of another one.
    """
    if (kinds := _unread_kinds(file, b"vide")) is None:
        return None
    return f"pictures stored as {kinds[1]}, behind those as {kinds[0]}, are left out, as by FFmpeg"


def unread_sound(file: BinaryIO, number: int) -> str:
    """Return the same for the sound of a track, by its ID; "" where none is of another kind."""
    if (kinds := _unread_kinds(file, b"soun", number)) is None:
        return ""
    return f"sound stored as {kinds[1]}, behind that as {kinds[0]}, is left out, as by FFmpeg"


def _unread_kinds(file: BinaryIO, handler: bytes, number: int | None = None) -> tuple[str, str] | None:
    """Return the kind of the first sample entry of a track, and those of others that samples have; None for none."""
    end = file.seek(0, 2)
    for begin, stop in inner_boxes(file, 0, end, b"moov"):
        for track_begin, track_stop in inner_boxes(file, begin, stop, b"trak"):
            media = next(inner_boxes(file, track_begin, track_stop, b"mdia"), (0, 0))
            if content_of(file, *media, b"hdlr")[8:12] != handler:
                continue
            if number is not None and track_id(file, track_begin, track_stop) != number:
                continue
            kinds = _kinds(content_of(file, *media, b"minf", b"stbl", b"stsd"))
            others = {index for index, kind in enumerate(kinds, 1) if kind != kinds[0]}
            if not others or kinds[0] in _ANY_KIND:
                continue
            runs = content_of(file, *media, b"minf", b"stbl", b"stsc", most=_MOST_RUNS_BYTES)
            used = {int.from_bytes(runs[at + 8 : at + 12], "big") for at in range(8, len(runs), 12)}
            if others & (used | set(_of_fragments(file))):
                return _name(kinds[0]), " and ".join(
                    sorted({_name(kind) for kind in kinds[1:]} - {_name(kinds[0])})
                )
    return None


def _kinds(table: bytes) -> list[bytes]:
    """Return the kind of each sample entry; that of an encrypted one is what it was before."""
    kinds, at = list[bytes](), _ENTRIES
    while at + _ENTRY <= len(table) and len(kinds) < _MOST_ENTRIES:
        size, kind = int.from_bytes(table[at : at + 4], "big"), table[at + 4 : at + 8]
        if kind in _ENCRYPTED and not kinds and (format_at := table.find(b"frma", at, at + size)) >= 0:
            kind = table[format_at + 4 : format_at + 8]
        kinds.append(kind)
        at += max(size, _ENTRY)
    return kinds


def _name(kind: bytes) -> str:
    return "encrypted" if kind in _ENCRYPTED else kind.decode("latin-1").strip()


def _of_fragments(file: BinaryIO) -> Iterator[int]:
    """Yield the sample entries that fragments name."""
    for kind, offset, size in boxes(file):
        for begin, stop in inner_boxes(file, offset + 8, offset + size, b"traf") if kind == b"moof" else ():
            head = content_of(file, begin, stop, b"tfhd")
            at = 16 if head[3:4] and head[3] & 1 else 8
            if head[3:4] and head[3] & 2:
                yield int.from_bytes(head[at : at + 4], "big")


def unlisted_media(file: BinaryIO) -> str:
    """Return words for MP4 and MOV whose index lists less than half of the media data (mdat); "" for others.

    Cameras that mend a recording after a loss of power write such an index (ISO/IEC 14496-12, 8.7.3).
    """
    top = list(boxes(file))
    stored = sum(size for kind, _, size in top if kind == b"mdat")
    index = next(((begin + 8, begin + size) for kind, begin, size in top if kind == b"moov"), None)
    if index is None or stored < _LEAST_BYTES or next(inner_boxes(file, *index, b"mvex"), None) is not None:
        return ""
    listed = 0
    for begin, stop in inner_boxes(file, *index, b"trak"):
        sizes = content_of(file, begin, stop, b"mdia", b"minf", b"stbl", b"stsz", most=_MOST_SIZES_BYTES)
        if len(sizes) < 12:  # another table, of small samples
            return ""
        each, count = int.from_bytes(sizes[4:8], "big"), int.from_bytes(sizes[8:12], "big")
        if 0 < each < _LEAST_SAMPLE:  # of raw sound some state a channel's samples
            return ""
        of_each = np.frombuffer(sizes[12 : 12 + len(sizes[12:]) // 4 * 4], ">u4")
        listed += each * count if each else int(of_each.sum(dtype=np.int64))
    if listed > _MOST_LISTED * stored:
        return ""
    share = max(1, round(100 * listed / stored))
    return f"its index lists {share} % of its media data, and nothing of the rest is read"
