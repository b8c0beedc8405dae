"""Runs of samples in fragments of MP4 and MOV, and the time at which the last one ends (ISO/IEC 14496-12, 8.8)."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from reelweave.curate.frames.clocks.clock import JUMP_S
from reelweave.curate.frames.container.edit_list import content_of, inner_boxes, track_id
from reelweave.curate.frames.container.encryption import boxes

_MOST_RUN_BYTES = 1 << 26
_FIELDS = _DURATION, _, _, _OFFSET = 0x100, 0x200, 0x400, 0x800
"""Flags of what a run states of each sample: duration, size, flags, offset."""


class Run(NamedTuple):
    """Run of samples; what it does not state has no elements.

    Attributes:
        samples: Number of samples.
        durations: Duration of each sample in ticks.
        offsets: Ticks from the time of coding of each sample to that at which it is shown.
    """

    samples: int
    durations: NDArray[np.int64]
    offsets: NDArray[np.int64]


def track_fragments(file: BinaryIO, begin: int, end: int, track: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the parts of a fragment (traf) that are of a track."""
    for part_begin, part_end in inner_boxes(file, begin, end, b"traf"):
        if int.from_bytes(content_of(file, part_begin, part_end, b"tfhd", most=8)[4:8], "big") == track:
            yield part_begin, part_end


def sample_runs(file: BinaryIO, begin: int, end: int) -> Iterator[Run]:
    """Yield the runs (trun) in a part of a fragment."""
    for run_begin, run_end in inner_boxes(file, begin, end, b"trun"):
        file.seek(run_begin)
        run = file.read(min(run_end - run_begin, _MOST_RUN_BYTES))
        flags, count = int.from_bytes(run[1:4], "big"), int.from_bytes(run[4:8], "big")
        stated = [flag for flag in _FIELDS if flags & flag]
        head = 8 + 4 * (flags & 1 > 0) + 4 * (flags & 4 > 0)
        if stated:
            count = min(count, max(0, len(run) - head) // (4 * len(stated)))
        table = np.frombuffer(run[head : head + 4 * len(stated) * count], ">i4").reshape(
            -1, max(1, len(stated))
        )
        durations, offsets = (
            table[:, stated.index(flag)].astype(np.int64) if flag in stated else np.zeros(0, np.int64)
            for flag in (_DURATION, _OFFSET)
        )
        yield Run(count, durations & 0xFFFFFFFF, offsets)


def fragments_until(container: InputContainer, file: BinaryIO, track: int) -> int | None:
    """Return the time at which the last fragment of a track ends, in ticks; None where a header tells it, or none does.

    FFmpeg gives the latest end of all samples as the duration of the film. Live recorders let the last sample of a
    fragment last until the next one comes, or until their clock has stepped, by hours. A last sample of more than a
    minute lasts as long as the one before.

    Args:
        container: Opened container.
        file: The file that it reads, which is left where it was.
        track: ID of the track.
    """
    if "mp4" not in container.format.name:
        return None
    position = file.tell()
    try:
        return _until(file, track)
    finally:
        file.seek(position)


def _until(file: BinaryIO, track: int) -> int | None:
    top = list(boxes(file))
    index = next(((begin + 8, begin + size) for kind, begin, size in top if kind == b"moov"), (0, 0))
    extends = next(inner_boxes(file, *index, b"mvex"), None)
    ticks_per_s, stated = _header_times(file, index, track)
    if extends is None or not ticks_per_s or stated:
        return None
    for kind, begin, size in reversed(top):
        if kind == b"moof":
            for part in track_fragments(file, begin + 8, begin + size, track):
                return _part_until(file, part, _usual_ticks(file, part, extends, track), JUMP_S * ticks_per_s)
    return None


def _header_times(file: BinaryIO, index: tuple[int, int], track: int) -> tuple[int, int]:
    """Return ticks per second and duration of a track by its own header (mdhd), 0 and 0 without one."""
    for begin, end in inner_boxes(file, *index, b"trak"):
        if track_id(file, begin, end) == track:
            head = content_of(file, begin, end, b"mdia", b"mdhd", most=32)
            wide = head[:1] == b"\1"
            offset, length = (20, 8) if wide else (12, 4)
            lasts = int.from_bytes(head[offset + 4 : offset + 4 + length], "big")
            unknown = (1 << 8 * length) - 1
            return int.from_bytes(head[offset : offset + 4], "big"), 0 if lasts == unknown else lasts
    return 0, 0


def _usual_ticks(file: BinaryIO, part: tuple[int, int], extends: tuple[int, int], track: int) -> int:
    """Return the duration of samples that state none, by the head of their part (tfhd) or of the film (trex)."""
    head = content_of(file, *part, b"tfhd", most=40)
    flags = int.from_bytes(head[1:4], "big")
    if flags & 8:
        offset = 8 + 8 * (flags & 1 > 0) + 4 * (flags & 2 > 0)
        return int.from_bytes(head[offset : offset + 4], "big")
    for begin, end in inner_boxes(file, *extends, b"trex"):
        file.seek(begin)
        usual = file.read(min(end - begin, 24))
        if int.from_bytes(usual[4:8], "big") == track:
            return int.from_bytes(usual[12:16], "big")
    return 0


def _part_until(file: BinaryIO, part: tuple[int, int], usual_ticks: int, longest_ticks: float) -> int | None:
    """Return the time at which a part of a fragment ends, or None where it states no time at which it begins."""
    begin = content_of(file, *part, b"tfdt", most=16)
    if len(begin) < 8:
        return None
    lasts = [
        run.durations if len(run.durations) else np.full(min(run.samples, 1 << 20), usual_ticks)
        for run in sample_runs(file, *part)
    ]
    durations = np.concatenate([*lasts, np.zeros(0, np.int64)])
    if len(durations) and durations[-1] > longest_ticks:
        durations[-1] = durations[-2] if len(durations) > 1 and durations[-2] <= longest_ticks else 0
    return int.from_bytes(begin[4 : 12 if begin[:1] == b"\1" else 8], "big") + int(durations.sum())
