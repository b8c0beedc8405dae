"""Pictures of MP4 and MOV that FFmpeg moves beside their sound, by less than some frames.

An edit that begins within a frame (ISO/IEC 14496-12, 8.6.6) lets the next frame begin late; FFmpeg shows it at once.
Where pictures are shown before their time of coding (negative offsets, 8.6.1.3), it delays all pictures of a fragmented
film by the largest of these offsets.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import BinaryIO, cast

import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.frames.clocks.fragment_runs import sample_runs, track_fragments
from reelweave.curate.frames.container.edit_list import content_of, inner_boxes, track_id
from reelweave.curate.frames.container.encryption import boxes

_LEAST_S = 0.001
_MOST_TABLE_BYTES = 1 << 26
_MOST_FRAMES = 1 << 24


def sound_shift_s(video: VideoStream) -> Fraction:
    """Return by how much the stamps of the sound must be moved so that it is beside its pictures again, seconds.

    Args:
        video: Stream of pictures of an opened container, whose file is left where it was.
    """
    container = video.container
    file = getattr(getattr(container, "file", None), "file", None)
    if "mp4" not in container.format.name or file is None or not video.time_base:
        return Fraction(0)
    position = file.tell()
    try:
        early = _early_ticks(cast(BinaryIO, file), video.id)
    finally:
        file.seek(position)
    shift_s = -early * video.time_base
    return shift_s if abs(shift_s) >= _LEAST_S else Fraction(0)


def _early_ticks(file: BinaryIO, track: int) -> int:
    """Return by how many ticks FFmpeg shows the pictures of a track too early, negative where it is too late."""
    top = list(boxes(file))
    for kind, begin, size in top:
        if kind != b"moov":
            continue
        if next(inner_boxes(file, begin + 8, begin + size, b"mvex"), None) is not None:
            return -_largest_offset(file, top, track)
        movie_ticks = _ticks_per_s(content_of(file, begin + 8, begin + size, b"mvhd", most=32))
        for track_begin, track_end in inner_boxes(file, begin + 8, begin + size, b"trak"):
            if track_id(file, track_begin, track_end) == track:
                return _late_first(file, track_begin, track_end, movie_ticks)
    return 0


def _late_first(file: BinaryIO, begin: int, end: int, movie_ticks: int) -> int:
    """Return for how long no frame begins behind the begin of a track's only edit, in ticks."""
    edits = content_of(file, begin, end, b"edts", b"elst")
    is_wide = edits[:1] == b"\1"
    form = ">u8, >i8, >u4" if is_wide else ">u4, >i4, >u4"
    entries = np.frombuffer(
        edits[8 : 8 + (len(edits) - 8) // (20 if is_wide else 12) * (20 if is_wide else 12)], form
    )
    lasting = [
        entry for entry in entries.tolist()[: int.from_bytes(edits[4:8], "big")] if entry[0] and entry[1] >= 0
    ]
    media = next(inner_boxes(file, begin, end, b"mdia"), (0, 0))
    track_ticks = _ticks_per_s(content_of(file, *media, b"mdhd", most=32))
    if len(lasting) != 1 or not movie_ticks or not track_ticks:
        return 0
    lasts, since, _ = lasting[0]
    shown, delay = _shown_ticks(file, media)
    until = since + lasts * track_ticks // movie_ticks
    inside = shown[(shown + delay >= since) & (shown + delay < until)]
    return int(inside.min()) - since if len(inside) else 0


def _shown_ticks(file: BinaryIO, media: tuple[int, int]) -> tuple[NDArray[np.int64], int]:
    """Return when the frames of a track are shown, in ticks, and the delay by which FFmpeg compares them with edits."""
    steps, offsets = (
        _runs(content_of(file, *media, b"minf", b"stbl", kind, most=_MOST_TABLE_BYTES))
        for kind in (b"stts", b"ctts")
    )
    if int(steps[:, 0].sum()) > _MOST_FRAMES or int(offsets[:, 0].sum()) > _MOST_FRAMES:
        return np.zeros(0, np.int64), 0
    lasts = np.repeat(steps[:, 1], steps[:, 0])
    shown = np.cumsum(lasts) - lasts
    # Signed, whatever the version says.
    moved = np.repeat(offsets[:, 1].astype(np.int32).astype(np.int64), offsets[:, 0])[: len(shown)]
    shown[: len(moved)] += moved
    return shown, int(max(0, -moved.min(initial=0)))


def _runs(table: bytes) -> NDArray[np.int64]:
    """Return counts and values of a table of runs [n, 2]."""
    count = min(int.from_bytes(table[4:8], "big"), max(0, len(table) - 8) // 8)
    return np.frombuffer(table[8 : 8 + 8 * count], ">u4").reshape(-1, 2).astype(np.int64)


def _largest_offset(file: BinaryIO, top: list[tuple[bytes, int, int]], track: int) -> int:
    """Return the largest number of ticks by which a track of fragments shows a frame before its time of coding.

    Of a film with an index of its fragments (sidx), FFmpeg knows those of the first one when it begins.
    """
    has_index, largest = any(kind == b"sidx" for kind, _, _ in top), 0
    for kind, begin, size in top:
        if kind == b"moof":
            largest = max((largest, *_offsets(file, begin + 8, begin + size, track)))
            if has_index:
                break
    return largest


def _offsets(file: BinaryIO, begin: int, end: int, track: int) -> Iterator[int]:
    """Yield by how much each run of a fragment shows a frame of a track before its time of coding at most, in ticks."""
    for fragment_begin, fragment_end in track_fragments(file, begin, end, track):
        for run in sample_runs(file, fragment_begin, fragment_end):
            if len(run.offsets):
                yield -int(run.offsets.min())


def _ticks_per_s(head: bytes) -> int:
    """Return the ticks per second that a header states (mvhd, mdhd)."""
    offset = 20 if head[:1] == b"\1" else 12
    return int.from_bytes(head[offset : offset + 4], "big")
