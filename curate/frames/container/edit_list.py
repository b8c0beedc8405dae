"""Edit lists of MP4 and MOV that FFmpeg does not play as they are meant: with pauses, held pictures or another speed.

It shows nothing of a track whose edits last no time, unless the film is fragmented.
For an empty edit behind the begin FFmpeg shows the film from its start, hidden parts too. It plays each edit at the
speed of the film. ISO/IEC 14496-12, 8.6.6.
"""

import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from av.container import InputContainer

_MISREAD = "pauses, holds a picture or changes the speed, for which FFmpeg plays other parts of the film"
_EMPTY_TRACK = "lasts 0 s, so that nothing of it is shown (`ffmpeg -ignore_editlist 1` reads it whole)"
_BEHIND = "begins behind its last frame, so that nothing of it is shown (`ffmpeg -ignore_editlist 1` reads it whole)"

_MOST_BOXES = 256  # of one box
_MOST_EDITS = 4096
_MOST_STEPS_BYTES = 1 << 26
_NEGATIVE, _LEAST_STEP = 1 << 31, (1 << 32) - 480_000
"""Steps from which on a signed number is negative, and from which on FFmpeg takes it for negative."""
_EMPTY = -1  # media time
_USUAL = 1 << 16  # speed
_LEAST_LEAD_S = 0.2  # pictures that are reordered may begin below 0 without an edit list


def edit_faults(container: InputContainer, file: BinaryIO) -> dict[int, str]:
    """Return what such edit lists do, by the IDs of their tracks, in words that follow "edit list".

    Args:
        container: Opened container.
        file: The file that it reads, which is left where it was.
    """
    with _kept_place(file):
        return {track.number: fault for track in _tracks(container, file) if (fault := _fault(track))}


def count_edits(container: InputContainer, file: BinaryIO, number: int) -> int:
    """Return how many edits the list of a track has, 0 without one; see `edit_faults`.

    Args:
        container: Opened container.
        file: The file that it reads, which is left where it was.
        number: ID of the track.
    """
    with _kept_place(file):
        return max(
            (len(track.edits) for track in _tracks(container, file) if track.number == number), default=0
        )


def behind_edit(container: InputContainer, file: BinaryIO, number: int) -> int | None:
    """Return for how many ticks a track has pictures behind the begin of its only edit; None where that is not known.

    Editors write edits that last longer than the rest of the track.

    Args:
        container: Opened container.
        file: The file that it reads, which is left where it was.
        number: ID of the track.
    """
    with _kept_place(file):
        for track in _tracks(container, file):
            if track.number == number and len(track.edits) == 1 and not track.is_fragmented:
                lasts = sum(count * ticks for count, ticks in track.steps())
                return max(0, lasts + track.shift - track.edits[0][0]) if lasts else None
    return None


def misread_step(container: InputContainer, file: BinaryIO, number: int) -> str:
    """Return words for a step back of a track's clock that FFmpeg takes for hours ahead, "" without one.

    Steps are whole numbers without a sign (stts: ISO/IEC 14496-12, 8.6.1.2); writers store negative ones, of which
    FFmpeg knows those of up to 480,000 ticks.

    Args:
        container: Opened container.
        file: The file that it reads, which is left where it was.
        number: ID of the track.
    """
    with _kept_place(file):
        tracks = [track for track in _tracks(container, file) if track.number == number]
        steps = [step for track in tracks for step in track.steps()]
    back = next((ticks - (1 << 32) for _, ticks in steps if _NEGATIVE <= ticks < _LEAST_STEP), 0)
    return f"behind a step of the clock by {back} ticks, which FFmpeg takes for hours ahead" if back else ""


def kept_lead(container: str, begin_s: float) -> str:
    """Return words for pictures before the begin that an edit list states, which FFmpeg shows in fragmented films.

    Args:
        container: Name of the container format in FFmpeg.
        begin_s: Stamp of the first picture in seconds, negative before that begin.
    """
    if "mp4" not in container or begin_s > -_LEAST_LEAD_S:
        return ""
    return f"the first {-begin_s:.2f} s, which an edit list leaves out, are kept, as by FFmpeg"


@dataclass(frozen=True)
class _Track:
    """Track with its edits, as the header states them.

    Attributes:
        number: ID of the track.
        edits: Media time and speed of each edit that lasts, but for empty ones at the begin.
        entries: Number of entries in the list, with those that do not last.
        is_fragmented: True if the film is fragmented.
        shift: Ticks from the time of coding of the first frame to that at which it is shown.
        steps: Function that yields counts of frames and the ticks for which each lasts.
    """

    number: int
    edits: list[tuple[int, int]]
    entries: int
    is_fragmented: bool
    shift: int
    steps: Callable[[], Iterator[tuple[int, int]]]


@contextmanager
def _kept_place(file: BinaryIO) -> Iterator[None]:
    position = file.tell()
    try:
        yield
    finally:
        file.seek(position)


def _tracks(container: InputContainer, file: BinaryIO) -> Iterator[_Track]:
    """Yield the tracks of MP4 and MOV."""
    end = file.seek(0, 2) if "mp4" in container.format.name else 0
    for begin, stop in inner_boxes(file, 0, end, b"moov"):
        is_fragmented = any(True for _ in inner_boxes(file, begin, stop, b"mvex"))
        for track_begin, track_stop in inner_boxes(file, begin, stop, b"trak"):
            table = content_of(file, track_begin, track_stop, b"edts", b"elst")
            yield _Track(
                track_id(file, track_begin, track_stop),
                _without_late_begin(list(_edits(table))),
                int.from_bytes(table[4:8], "big"),
                is_fragmented,
                _shift(
                    content_of(file, track_begin, track_stop, b"mdia", b"minf", b"stbl", b"ctts", most=16)
                ),
                partial(_steps, file, track_begin, track_stop),
            )


def inner_boxes(file: BinaryIO, begin: int, end: int, wanted: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the content of each box of a kind."""
    for _ in range(_MOST_BOXES):
        file.seek(begin)
        header = file.read(16)
        if len(header) < 8:
            return
        size, kind, head = int.from_bytes(header[:4], "big"), header[4:8], 8
        if size == 1:
            size, head = int.from_bytes(header[8:16], "big"), 16
        if size < head or begin + size > end:
            return
        if kind == wanted:
            yield begin + head, begin + size
        begin += size


def content_of(
    file: BinaryIO, begin: int, end: int, *kinds: bytes, most: int = 8 + 20 * _MOST_EDITS
) -> bytes:
    """Return the content of a box within others, b"" where there is none; at most so many bytes."""
    for kind in kinds:
        begin, end = next(inner_boxes(file, begin, end, kind), (0, 0))
    file.seek(begin)
    return file.read(min(end - begin, most))


def track_id(file: BinaryIO, begin: int, end: int) -> int:
    """Return the ID of a track, by begin and end of its content."""
    head = content_of(file, begin, end, b"tkhd")
    offset = 20 if head[:1] == b"\1" else 12
    return int.from_bytes(head[offset : offset + 4], "big")


def _shift(table: bytes) -> int:
    """Return the first entry of a table of shifts (ctts), 0 without one."""
    return int.from_bytes(table[12:16], "big", signed=True)


def _fault(track: _Track) -> str:
    if _is_misread(track.edits):
        return _MISREAD
    if track.is_fragmented:
        return ""
    if not track.edits:
        return _EMPTY_TRACK if track.entries else ""
    lasts = sum(count * ticks for count, ticks in track.steps())
    return _BEHIND if 0 < lasts < min(time for time, _ in track.edits) else ""


def _steps(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the entries of a track's table of steps (stts)."""
    tables = (b"mdia", b"minf", b"stbl", b"stts")
    table = content_of(file, begin, end, *tables, most=_MOST_STEPS_BYTES)
    yield from struct.iter_unpack(">II", table[8 : 8 + (len(table) - 8) // 8 * 8])


def _edits(table: bytes) -> Iterator[tuple[int, int]]:
    """Yield media time and speed of each edit that lasts."""
    form = ">QqI" if table[:1] == b"\1" else ">IiI"
    count = int.from_bytes(table[4:8], "big")
    count = min(count, (len(table) - 8) // struct.calcsize(form))
    for index in range(count):
        lasts, media_time, speed = struct.unpack_from(form, table, 8 + index * struct.calcsize(form))
        if lasts:
            yield media_time, speed


def _without_late_begin(edits: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the edits behind empty ones at the begin, which FFmpeg knows."""
    return list(itertools.dropwhile(lambda edit: edit[0] == _EMPTY, edits))


def _is_misread(edits: list[tuple[int, int]]) -> bool:
    many = len(edits) > 1
    # Writers that know one edit leave its speed 0 at times.
    return any(time == _EMPTY or (speed != _USUAL and (many or speed)) for time, speed in edits)
