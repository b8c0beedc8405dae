"""Repair of time stamps that do not rise, around the fault, so that all other stamps stay as they are.

A clock that restarts or jumps (joined recordings, counters that wrap) is joined at the break. Single stamps
that are out of order, repeated or missing are spread evenly between their neighbours. Stamps that a muxer squeezed
together, since time stood still for it until a join was over, stay together: no time passes there.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_MOST_LOST = 0.2
"""Share of wrong stamps above which all are rejected: AVI counts frames in decoding order."""

JUMP_S = 60.0
"""Seconds above which a frame without a stated duration is the last one before a jump of the clock."""

_AROUND, _LEAST = 8, 4
"""Frames compared on each side of a break, and the minimum number of them where a clock restarts."""

_STEADY = 0.2
"""Relative difference of gaps that show one rate; ticks of a millisecond move those of 60 fps by less."""

SQUEEZED_S = 0.0015
"""Seconds between the stamps of squeezed frames, in either direction."""

_LEAST_SQUEEZED, _MOST_SQUEEZED = 3, 0.8
"""Frames that are squeezed together, and the share of all above which stamps say nothing."""

_INSTANT_S = 1e-6  # duration of a frame that has no time

_DELAY_COST, _MOST_TANGLED = 4, 512
"""Stamps that may be left out instead of one frame of delay, and the frames that are looked at together."""

_FAR = 8
"""Usual gaps above which a step between reordered pictures may be that of a clock."""

_REORDERED = 16  # maximum distance of decoding and display order in H.264 and HEVC, frames

Ticks = NDArray[np.int64]


@dataclass(frozen=True)
class RepairedClock:
    """Repaired clock of a source's frames, in ticks.

    Attributes:
        ticks: float64 [frames], strictly rising.
        shifts: float64 [frames]: repaired stamp minus the stamp in the source.
        breaks: Frames at which the clock jumps or restarts.
        repeats: Frames at which stamps of the last few frames come a second time, as in a segment written twice.
    """

    ticks: NDArray[np.float64]
    shifts: NDArray[np.float64]
    breaks: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()


def repair_clock(
    pts: Sequence[int | None], seconds_per_tick: float, durations: Sequence[int] | None = None
) -> RepairedClock | None:
    """Return the clock of frames in display order, or None when too many stamps are wrong.

    Args:
        pts: Presentation stamps from the decoder, in ticks.
        seconds_per_tick: Time base of stamps and durations.
        durations: Stated duration of each frame in ticks, 0 where unknown; a long duration is no jump.
    """
    # A clock whose stamps rise without jumps is right as it is.
    stamped_frames = np.array([frame for frame, tick in enumerate(pts) if tick is not None], np.int64)
    if not len(stamped_frames) or len(pts) - len(stamped_frames) > _MOST_LOST * len(pts):
        return None
    stated: Ticks = np.array([tick for tick in pts if tick is not None], np.int64)
    gaps = np.diff(stated)
    held = np.zeros(len(stated)) if durations is None else np.array(durations, np.float64)[stamped_frames]
    jumps = _jumps(gaps, held, JUMP_S / seconds_per_tick)
    if len(stamped_frames) == len(pts) and (gaps > 0).all() and not jumps.any():
        return RepairedClock(stated.astype(np.float64), np.zeros(len(stated)))
    stated = _of_next_clock(stated, gaps, jumps)
    gaps = np.diff(stated)
    jumps = _jumps(gaps, held, JUMP_S / seconds_per_tick)
    # Across each break the film goes on: what lies behind it moves by one usual gap.
    squeezed = _squeezed_mask(gaps, SQUEEZED_S / seconds_per_tick)
    rising = gaps[(gaps > 0) & ~(squeezed[1:] & squeezed[:-1])]
    usual = float(np.median(rising)) if len(rising) else 1.0
    breaks = list(_breaks(stated, np.flatnonzero((gaps <= 0) | jumps) + 1))
    repeats = [index for index in _repeats(stated, gaps) if index not in breaks]
    continuous = stated.astype(np.float64)
    for index in breaks:
        continuous[index:] += continuous[index - 1] + _lasts(gaps[: index - 1], usual) - continuous[index]
    # Stamps that fall out of the longest rising run are wrong; more than a few, and there is no clock.
    rising_indices = _steady_rising(continuous, usual, squeezed)
    lost = ~np.isin(np.arange(len(stated)), rising_indices) & ~squeezed
    if len(pts) - len(stamped_frames) + lost.sum() > _MOST_LOST * (len(pts) - squeezed.sum()):
        return None
    instant = _INSTANT_S / seconds_per_tick
    ticks, shifts = _fill_ticks(
        len(pts), stamped_frames, continuous, rising_indices, squeezed, usual, instant
    )
    # Stamps that were only written in another order fit better when they are sorted.
    everywhere = np.arange(len(stamped_frames))
    ordered, unmoved = _fill_ticks(
        len(pts), stamped_frames, np.sort(continuous), everywhere, squeezed, usual, instant
    )
    if (np.diff(ordered) > 0).all() and _unevenness(ordered, usual) < _unevenness(ticks, usual):
        ticks, shifts = ordered, unmoved
    # How far each frame was moved; one without a stamp moves with the frame before it.
    moved = np.zeros(len(pts))
    moved[stamped_frames] = continuous - stated
    before = np.maximum.accumulate(
        np.where(np.isin(np.arange(len(pts)), stamped_frames), np.arange(len(pts)), 0)
    )
    breaks_repeats = (tuple(int(stamped_frames[index]) for index in indices) for indices in (breaks, repeats))
    return RepairedClock(ticks, shifts + moved[before], *breaks_repeats)


def _lasts(gaps: Ticks, usual: float) -> float:
    """Return how long a frame lasts behind these gaps, where their rate is clearly another than the usual one."""
    near = gaps[-_AROUND:]
    lasts = float(np.median(near)) if len(near) >= _LEAST else usual
    steady = len(near) > 0 and bool((np.abs(near - lasts) <= _STEADY * lasts).all())
    return lasts if steady and abs(lasts - usual) > _STEADY * usual else usual


def _jumps(gaps: Ticks, held: NDArray[np.float64], longest: float) -> NDArray[np.bool_]:
    """Return a mask of the gaps longer than ``longest`` without a nearby frame that states such a duration.

    MP4 states durations in decoding order where pictures are reordered, so nearby frames count.
    """
    jumps = np.zeros(len(gaps), bool)
    for index in np.flatnonzero(gaps > longest).tolist():
        stated = held[max(0, index - _REORDERED) : index + _REORDERED + 1].max()
        jumps[index] = stated < gaps[index] / 2
    return jumps


def _of_next_clock(stated: Ticks, gaps: Ticks, jumps: NDArray[np.bool_]) -> Ticks:
    """Return stamps without those of one clock among the first ones of the next.

    A clock that jumps or restarts between reordered pictures leaves some of the clock before behind others in display
    order.
    """
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    far = np.flatnonzero(np.abs(gaps) > _FAR * usual) + 1
    moved, done = stated.copy(), 0
    for first in far[jumps[far - 1] | (gaps[far - 1] < 0)].tolist():
        ends = far[(far > first) & (far <= first + _REORDERED)]
        if first < done or not len(ends):
            continue
        last = int(ends[-1])
        jump = int(gaps[first - 1] - usual)
        near = stated[first : last + _LEAST]
        turns = stated[first - 1] + usual * np.arange(1, len(near) + 1)
        is_old, is_next = (np.abs(near - turns - later) <= abs(jump) / 4 for later in (0, jump))
        if (is_old ^ is_next).all() and is_next[last - first :].all():
            moved[first : last + _LEAST][is_old] += jump
            done = last
    return moved


def _breaks(stated: Ticks, suspects: NDArray[np.intp]) -> Iterator[int]:
    """Yield the frames at which another clock begins: the stamps around them before and after do not overlap."""
    since = 0
    for index in suspects.tolist():
        before, after = stated[max(since, index - _AROUND) : index], stated[index : index + _AROUND]
        anew = after.max() < before.min() and min(len(before), len(after)) >= _LEAST
        if anew or after.min() > before.max():
            yield index
            since = index


def _repeats(stated: Ticks, gaps: Ticks) -> Iterator[int]:
    """Yield the frames at which so few stamps come a second time that a clock which restarts there is no break.

    Behind them the film goes on. Wrong stamps are told by those behind, which catch up with the clock.
    """
    for index in (np.flatnonzero(gaps < 0) + 1).tolist():
        same = np.flatnonzero(stated[max(0, index - 2 * _AROUND) : index] == stated[index])
        count = min(index, 2 * _AROUND) - int(same[-1]) if len(same) else 0
        again = stated[index : index + count]
        if count < _LEAST or not np.array_equal(again, stated[index - count : index]):
            continue
        rises = again[1:] - again[:-1]
        goes_on = gaps[index + count - 1 : index + count]
        if (rises > 0).all() and (goes_on < count / 2 * np.median(rises)).all():
            yield index


def _longest_rising(ticks: list[float]) -> list[int]:
    """Return the indices of the longest strictly rising subsequence; the first of equal ticks."""
    tails: list[float] = []
    ends: list[int] = []
    previous = [-1] * len(ticks)
    for index, tick in enumerate(ticks):
        length = bisect_left(tails, tick)
        previous[index] = ends[length - 1] if length else -1
        if length == len(tails):
            tails.append(tick)
            ends.append(index)
        elif tick < tails[length]:
            tails[length], ends[length] = tick, index
    indices: list[int] = []
    index = ends[-1]
    while index >= 0:
        indices.append(index)
        index = previous[index]
    return indices[::-1]


def _steady_rising(ticks: NDArray[np.float64], usual: float, squeezed: NDArray[np.bool_]) -> Ticks:
    """Return the indices of a rising run that leaves out few stamps, and delays few frames behind it.

    The longest run may end at a stamp that is too late, behind which there is no room for others: all further frames
    would then be delayed. Where stamps are out of order, each left out costs one, and each frame of delay several.
    """
    rising = np.array(_longest_rising(ticks.tolist()), np.int64)
    behind = np.minimum.accumulate(ticks[::-1])[::-1]
    tangled = np.flatnonzero(np.maximum.accumulate(ticks)[:-1] >= behind[1:])
    windows: list[list[int]] = []
    for index in tangled.tolist():
        first, last = max(0, index - _REORDERED), min(len(ticks), index + 2 + _REORDERED)
        if windows and first <= windows[-1][1]:
            windows[-1][1] = last
        else:
            windows.append([first, last])
    for first, last in windows:
        if last - first > _MOST_TANGLED or squeezed[first:last].any():
            continue
        near, ends = ticks[first:last], (first == 0, last == len(ticks))
        longest = rising[(rising >= first) & (rising < last)] - first
        cheapest = _cheapest_rising(near, usual, *ends)
        if _cost(near, cheapest, usual) < _cost(near, longest, usual):
            rising = np.concatenate([rising[rising < first], first + cheapest, rising[rising >= last]])
    return rising


def _cost(ticks: NDArray[np.float64], run: Ticks, usual: float) -> float:
    """Return the cost of a rising run: stamps that are left out, and frames of delay where there is no room."""
    count, (begin, end) = np.diff(run), _end_costs(ticks, usual)
    inside = count - 1 + _DELAY_COST * _delay(count, np.diff(ticks[run]), usual)
    return float(begin[run[0]] + inside.sum() + end[run[-1]])


def _delay(count: Ticks, room: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
    """Return the frames of delay between stamps that so many frames lie behind each other."""
    return np.where(count > 1, np.maximum(0.0, count - room / usual), 0.0)


def _end_costs(ticks: NDArray[np.float64], usual: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cost of a run that begins, or ends, at each stamp.

    Those left out there lie a usual gap apart: a film that begins before its first stamp, or ends behind its last one,
    has become longer.
    """
    count = np.arange(len(ticks))
    room = ticks - ticks[0], ticks[-1] - ticks[::-1]
    begin, end = (
        count + _DELAY_COST * np.where(gap > 0, _delay(count + 1, gap + usual, usual), 0.0) for gap in room
    )
    return begin, end[::-1]


def _cheapest_rising(ticks: NDArray[np.float64], usual: float, is_begin: bool, is_end: bool) -> Ticks:
    """Return the indices of the rising run that costs least, from the first stamp to the last one.

    Args:
        ticks: Stamps in display order.
        usual: Usual gap.
        is_begin: True if the first stamps may be left out, too: none lies before them.
        is_end: True if the last ones may.
    """
    costs, end = _end_costs(ticks, usual)
    before = np.full(len(ticks), -1)
    costs[1:] = costs[1:] if is_begin else np.inf
    for index in range(1, len(ticks)):
        count, room = index - np.arange(index), ticks[index] - ticks[:index]
        total = costs[:index] + count - 1 + _DELAY_COST * _delay(count, room, usual)
        total[room <= 0] = np.inf
        best = int(np.argmin(total))
        if total[best] < costs[index]:
            costs[index], before[index] = total[best], best
    index = int(np.argmin(costs + end)) if is_end else len(ticks) - 1
    run = [index]
    while before[run[-1]] >= 0:
        run.append(int(before[run[-1]]))
    return np.array(run[::-1], np.int64)


def _unevenness(ticks: NDArray[np.float64], usual: float) -> float:
    return float(np.abs(np.diff(ticks) - usual).sum())


def _squeezed_mask(gaps: Ticks, longest: float) -> NDArray[np.bool_]:
    """Return a mask of the frames in runs of stamps that hardly differ; none where most do."""
    edges = np.flatnonzero(np.diff(np.abs(gaps) <= longest, prepend=False, append=False)).reshape(-1, 2)
    squeezed = np.zeros(len(gaps) + 1, bool)
    for first, last in edges.tolist():
        squeezed[first : last + 1] = last + 1 - first >= _LEAST_SQUEEZED
    return squeezed if squeezed.mean() <= _MOST_SQUEEZED else np.zeros(len(squeezed), bool)


def _fill_ticks(
    frames: int,
    stamped_frames: Ticks,
    stated: NDArray[np.float64],
    rising_indices: Ticks,
    squeezed: NDArray[np.bool_],
    usual: float,
    instant: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ticks of all frames, and the delay of each frame that made room for missing ones.

    Frames between two that are kept are spread evenly. Where there is no room for them, squeezed ones have no time, and
    for others everything after is delayed.
    """
    anchors, ticks = stamped_frames[rising_indices], stated[rising_indices]
    count = np.diff(anchors)
    room = np.diff(ticks)
    crowded = (count > 1) & (room < count * usual / 2)
    timeless = crowded & np.array(
        [squeezed[a : b + 1].any() for a, b in pairwise(rising_indices.tolist())], bool
    )
    missing = np.where(crowded & ~timeless, count * usual - room, 0.0)
    moved = np.concatenate([[0.0], np.cumsum(missing)])
    frame_indices = np.arange(frames)
    filled = np.interp(frame_indices, anchors, ticks + moved)
    filled += (
        np.minimum(frame_indices - anchors[0], 0) * usual + np.maximum(frame_indices - anchors[-1], 0) * usual
    )
    for index in np.flatnonzero(timeless).tolist():
        between = np.arange(1, count[index])
        short = min(instant, room[index] / (count[index] + 1))
        filled[anchors[index] + between] = filled[anchors[index]] + between * short
    # Up to the end no later stamp tells how little room there is.
    behind = squeezed[rising_indices[-1] + 1 :]
    if behind.all() and len(behind) == frames - 1 - anchors[-1]:
        filled[anchors[-1] + 1 :] = filled[anchors[-1]] + np.arange(1, frames - anchors[-1]) * instant
    shifts = moved[np.clip(np.searchsorted(anchors, frame_indices, side="right") - 1, 0, None)]
    return filled, shifts
