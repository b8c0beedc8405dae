"""Repair of time stamps that do not rise, around the fault, so that all other stamps stay as they are.

A clock that restarts or jumps (joined recordings, counters that wrap) is joined at the break. Single stamps
that are out of order, repeated or missing are spread evenly between their neighbours.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_LOST = 0.2
"""Share of wrong stamps above which all are rejected: AVI counts frames in decoding order."""

JUMP_S = 60.0
"""Seconds above which a frame without a stated duration is the last one before a jump of the clock."""

_AROUND, _LEAST = 8, 4
"""Frames compared on each side of a break, and the minimum number of them where a clock restarts."""

_REORDERED = 16  # maximum distance of decoding and display order in H.264 and HEVC, frames

Ticks = NDArray[np.int64]


@dataclass(frozen=True)
class RepairedClock:
    """Repaired clock of a source's frames, in ticks.

    Attributes:
        ticks: float64 [frames], strictly rising.
        shifts: float64 [frames]: repaired stamp minus the stamp in the source.
        breaks: Frames at which the clock jumps or restarts.
    """

    ticks: NDArray[np.float64]
    shifts: NDArray[np.float64]
    breaks: tuple[int, ...] = ()


def repaired(
    pts: Sequence[int | None], seconds_per_tick: float, durations: Sequence[int] | None = None
) -> RepairedClock | None:
    """Return the clock of frames in display order, or None when too many stamps are wrong.

    Args:
        pts: Presentation stamps from the decoder, in ticks.
        seconds_per_tick: Time base of stamps and durations.
        durations: Stated duration of each frame in ticks, 0 where unknown; a long duration is no jump.
    """
    known = np.array([number for number, tick in enumerate(pts) if tick is not None], np.int64)
    if not len(known) or len(pts) - len(known) > _MOST_LOST * len(pts):
        return None
    stated: Ticks = np.array([tick for tick in pts if tick is not None], np.int64)
    gaps = np.diff(stated)
    held = np.zeros(len(stated)) if durations is None else np.array(durations, np.float64)[known]
    jumps = _jumps(gaps, held, JUMP_S / seconds_per_tick)
    if len(known) == len(pts) and (gaps > 0).all() and not jumps.any():
        return RepairedClock(stated.astype(np.float64), np.zeros(len(stated)))
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    places = list(_breaks(stated, np.flatnonzero((gaps <= 0) | jumps) + 1))
    joined = stated.astype(np.float64)
    for place in places:
        joined[place:] += joined[place - 1] + usual - joined[place]
    kept = np.array(_longest_rising(joined.tolist()), np.int64)
    if len(pts) - len(kept) > _MOST_LOST * len(pts):
        return None
    ticks, shifts = _filled(len(pts), known[kept], joined[kept], usual)
    ordered, unmoved = _filled(len(pts), known, np.sort(joined), usual)
    if (np.diff(ordered) > 0).all() and _unevenness(ordered, usual) < _unevenness(ticks, usual):
        ticks, shifts = ordered, unmoved
    moved = np.zeros(len(pts))
    moved[known] = joined - stated
    before = np.maximum.accumulate(np.where(np.isin(np.arange(len(pts)), known), np.arange(len(pts)), 0))
    return RepairedClock(ticks, shifts + moved[before], tuple(int(known[place]) for place in places))


def _jumps(gaps: Ticks, held: NDArray[np.float64], longest: float) -> NDArray[np.bool_]:
    """Return a mask of the gaps longer than ``longest`` without a nearby frame that states such a duration.

    MP4 states durations in decoding order where pictures are reordered, so nearby frames count.
    """
    jumps = np.zeros(len(gaps), bool)
    for place in np.flatnonzero(gaps > longest).tolist():
        stated = held[max(0, place - _REORDERED) : place + _REORDERED + 1].max()
        jumps[place] = stated < gaps[place] / 2
    return jumps


def _breaks(stated: Ticks, suspects: NDArray[np.intp]) -> Iterator[int]:
    """Yield the frames at which another clock begins: the stamps around them before and after do not overlap."""
    since = 0
    for place in suspects.tolist():
        before, after = stated[max(since, place - _AROUND) : place], stated[place : place + _AROUND]
        anew = after.max() < before.min() and min(len(before), len(after)) >= _LEAST
        if anew or after.min() > before.max():
            yield place
            since = place


def _longest_rising(ticks: list[float]) -> list[int]:
    """Return the indices of the longest strictly rising subsequence; the first of equal ticks."""
    tails: list[float] = []
    ends: list[int] = []
    previous = [-1] * len(ticks)
    for place, tick in enumerate(ticks):
        length = bisect_left(tails, tick)
        previous[place] = ends[length - 1] if length else -1
        if length == len(tails):
            tails.append(tick)
            ends.append(place)
        elif tick < tails[length]:
            tails[length], ends[length] = tick, place
    found: list[int] = []
    place = ends[-1]
    while place >= 0:
        found.append(place)
        place = previous[place]
    return found[::-1]


def _unevenness(ticks: NDArray[np.float64], usual: float) -> float:
    return float(np.abs(np.diff(ticks) - usual).sum())


def _filled(
    frames: int, places: Ticks, ticks: NDArray[np.float64], usual: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ticks of all frames, and the delay of each frame that made room for missing ones.

    Frames between two of ``places`` are spread evenly; where there is no room for them, everything after is
    delayed.
    """
    count = np.diff(places)
    room = np.diff(ticks)
    missing = np.where((count > 1) & (room < count * usual / 2), count * usual - room, 0.0)
    moved = np.concatenate([[0.0], np.cumsum(missing)])
    numbers = np.arange(frames)
    found = np.interp(numbers, places, ticks + moved)
    found += np.minimum(numbers - places[0], 0) * usual + np.maximum(numbers - places[-1], 0) * usual
    shifts = moved[np.clip(np.searchsorted(places, numbers, side="right") - 1, 0, None)]
    return found, shifts
