"""Display time of each frame of a source, and the constant frame rate of its clips."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.frames.clocks.clock import JUMP_S, repair_clock
from reelweave.curate.frames.clocks.rates import (
    FLEETING_S,
    STANDARD_RATES,
    choose_clip_rate,
    choose_rate,
    fleeting,
    lower_rate,
    snap_rate,
    ties_s,
)
from reelweave.curate.frames.interlace import FieldOrder
from reelweave.curate.frames.picture import Shape
from reelweave.loader.text import pluralize

_SEVERAL_TICKS = 1.5
"""Frames of the stated rate, in the usual distance of stamps, above which that rate is the one of ticks."""
_HELD = 1.5
"""Frames of a constant rate for which the last one is shown, and states it, above which it is held."""

_FEW_LEFT_OUT = 0.02  # share of a clip's frames without a slot that is not said
_MOST_LONGER_S = 0.02  # by which a last frame that lasts less than half a slot may be shown longer
_HALF = 0.51  # share of a frame's time, with its rounding
_REORDERED = 16  # frames at the end, any of which may state the end: MP4 states durations in order of coding
_LAST_FRAMES = 48  # that tell how long the last one lasts, if nothing says so
_LEAST_GAPS = 4
"""Gaps above which the last one may be measured by the others."""


@dataclass(frozen=True)
class Damage:
    """Reason why frames ``[first, last)``, in display order, could not be decoded cleanly."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True)
class Undecoded:
    """Packets at the end of a film that give no picture.

    Attributes:
        packets: Number of them.
        lasts_s: Seconds from the end of the last frame to that of the last packet.
    """

    packets: int
    lasts_s: float


@dataclass(frozen=True)
class FrameTimes:
    """Display times of a source's frames.

    Attributes:
        times_s: float64 [frames + 1]: start of each frame, seconds after the first one; the last entry is the
            end of the last frame.
        rate: Frames per second of the source.
        constant: True when every frame begins on the grid of ``rate``, so that clips take the frames one for
            one, but for a last one that is held. Else each clip has a rate of its own.
        damage: Damaged runs of frames, sorted and disjoint.
        deinterlace: True when frames are interlaced and clips show deinterlaced pictures.
        shifts_s: float64 [frames + 1]: ``times_s`` minus the source's own clock, where that was repaired;
            None: nowhere.
        breaks: Frames at which the source's clock jumps or restarts; no clip crosses one.
        repeats: Frames at which the last few frames come a second time; no clip crosses one.
        pulldown: Order of fields of a telecined film; its frames of repeated fields last an instant.
        max_fps: Upper limit of the rate of clips where the source's is not constant.
        fps: Rate of clips of faster footage; None: that of the footage.
        unmarked: Order of fields of frames that are interlaced without a mark.
        shapes: Shapes of the pictures, if they change; no clip holds two.
        coded: True where frames have no times of their own, and held ones are told by those of coding.
        begin: Time of coding of the first packet in ticks, behind empty slots, where the container has no others.
        undecoded: Packets behind the last frame.
        sound_steps: Frames from which on the source's sound lies otherwise beside its pictures; no clip crosses one.
    """

    times_s: NDArray[np.float64]
    rate: Fraction
    constant: bool
    damage: tuple[Damage, ...]
    deinterlace: bool = False
    shifts_s: NDArray[np.float64] | None = None
    breaks: tuple[int, ...] = ()
    pulldown: FieldOrder | None = None
    max_fps: float = math.inf
    unmarked: FieldOrder | None = None
    shapes: tuple[Shape, ...] = ()
    coded: bool = False
    begin: int | None = None
    undecoded: Undecoded | None = None
    sound_steps: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    fps: Fraction | None = None

    @property
    def borders(self) -> list[int]:
        """Frames that begin what no clip may hold with the frame before: another clock, shape or distance of sound."""
        return sorted(
            {*self.breaks, *self.repeats, *self.sound_steps, *(shape.first for shape in self.shapes[1:])}
        )

    @property
    def frames(self) -> int:
        """Number of frames that decode."""
        return len(self.times_s) - 1

    def footage_rate(self, first: int, last: int) -> Fraction:
        """Return the frames per second of frames ``[first, last)``, of which a clip may show fewer."""
        if self.constant or self.pulldown is not None:
            return self.rate
        return choose_clip_rate(self.times_s[first:last], self.rate, self.max_fps)

    def clip_rate(self, first: int, last: int) -> Fraction:
        """Return the frames per second of a clip of frames ``[first, last)``."""
        return lower_rate(self.footage_rate(first, last), self.fps)

    def is_lowered(self, first: int, last: int) -> bool:
        """Return whether a clip of frames ``[first, last)`` shows fewer frames than its footage, as ``fps`` asks."""
        return self.clip_rate(first, last) != self.footage_rate(first, last)

    def clip_frames(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the source frame for each frame of a clip of frames ``[first, last)``; see `source_frames`."""
        return source_frames(self.times_s, first, last, self.clip_rate(first, last))

    def left_out(self, first: int, last: int) -> str:
        """Return in words how many visible frames of ``[first, last)`` a clip has no slot for, "" for very few.

        The last frame of a source is named whatever it lasts, since no other one shows its picture. Of a clip of
        lowered rate the two rates are named instead.
        """
        if self.is_lowered(first, last):
            rates = self.footage_rate(first, last), self.clip_rate(first, last)
            return "its rate is lowered from {:.5g} to {:.5g} fps (cut.fps)".format(*map(float, rates))
        if self.constant or self.pulldown is not None:
            return ""
        slots = np.unique(self.clip_frames(first, last))
        visible = int((~fleeting(np.diff(self.times_s[first : last + 1]))).sum())
        fleeting_frames, slotless = last - first - visible, visible - len(slots)
        if fleeting_frames + slotless > _FEW_LEFT_OUT * (last - first):
            of_all, at_rate = f"of {last - first} frames", f"at {float(self.clip_rate(first, last)):.5g} fps"
            if not fleeting_frames:
                return f"{slotless} {of_all} have no slot {at_rate}"
            ms = 1000 * FLEETING_S
            words = f"{fleeting_frames} {of_all}, each shown for less than {ms:g} ms, are left out"
            further = pluralize(slotless, "further one has", "further ones have")
            return f"{words}; {further} no slot {at_rate}" if slotless else words
        if last == self.frames and slots[-1] != last - 1:
            lasts_s = self.times_s[last] - self.times_s[last - 1]
            return f"the last frame, which lasts {1000 * lasts_s:.0f} ms, has no slot"
        return ""


def timeline(
    pts: list[int | None],
    time_base: Fraction,
    last_duration: int | None,
    stated_rate: Fraction | None,
    damage: tuple[Damage, ...],
    max_fps: float,
    deinterlace: bool = False,
    durations: Sequence[int] | None = None,
    promised_s: float | None = None,
    coded: Sequence[int] = (),
    repeated: Collection[int] = (),
) -> FrameTimes:
    """Return the timeline of frames in display order.

    Args:
        pts: Presentation stamp of each frame in ticks, from the decoder. Stamps that do not rise are repaired
            locally. Where many are disordered, they are times of coding, and frames have these in turn. Where
            they are missing or repeated (AVI stores none), frames lie on a grid. Its step is that of the stated
            rate, or the usual distance of the stamps if larger.
        time_base: Seconds per tick.
        last_duration: Duration of the last frame in ticks, when known.
        stated_rate: Frame rate in the container, frames per second.
        damage: Damage recorded by the decoder.
        max_fps: Upper limit of the rate of clips from sources with variable frame rate.
        deinterlace: Value for `FrameTimes.deinterlace`.
        durations: Duration of every frame in ticks, 0 where unknown.
        promised_s: Duration in the header, seconds, to which a last picture is held at most.
        coded: Times of coding of the packets, in ticks, where the container has no others. Holes among them are
            pictures that are held, which the decoder's stamps lose where frames are moved.
        repeated: Stamps of packets that the file holds a second time. A clock that merely steps back is no repeat.
    """
    uses_coded = _has_holes(coded, len(pts)) and pts != list(coded)
    clock = repair_clock(coded if uses_coded else pts, float(time_base), None if uses_coded else durations)
    if clock is None and not coded and (in_order := _coding_times(pts)):
        clock, uses_coded = repair_clock(in_order, float(time_base)), _has_holes(in_order, len(pts))
    begin = coded[0] if len(coded) == len(pts) else None
    if clock is None:
        rate = _counted_rate(pts, time_base, stated_rate)
        return FrameTimes(np.arange(len(pts) + 1) / float(rate), rate, True, damage, deinterlace, begin=begin)
    times_s = (clock.ticks - clock.ticks[0]) * float(time_base)
    gaps_s = _clean_gaps_s(times_s, damage)
    runs = clean_runs(len(times_s), damage)
    rate, constant = choose_rate(times_s, gaps_s, stated_rate, runs, max_fps)
    if not constant and not damage and len(gaps_s) > _LEAST_GAPS:
        but_last = [(0, len(times_s) - 1)]
        other_rate, all_but_last = choose_rate(times_s[:-1], gaps_s[:-1], stated_rate, but_last, max_fps)
        if all_but_last and gaps_s[-1] < 1 / other_rate:
            # The decoder guesses the last stamp by the tick where AVI has empty packets between frames.
            rate, constant, times_s[-1] = other_rate, True, times_s[-2] + 1 / float(other_rate)
    last_s = 1 / float(rate)
    if promised_s is not None and durations is not None:
        durations = _within_promise(times_s, durations, promised_s, time_base)
        last_duration = last_duration if durations[-1] else None
    if not constant and last_duration and not _understated(times_s, durations, time_base):
        last_s = float(last_duration * time_base)
        if last_s < _MOST_LONGER_S and rate > 0:
            usual_s = 1 / float(choose_clip_rate(times_s[-_LAST_FRAMES:], rate, math.inf))
            if last_s < usual_s / 2 and usual_s - last_s <= _MOST_LONGER_S:
                last_s = usual_s  # so that it has a slot
    elif not constant:
        last_s = 1 / float(choose_clip_rate(times_s[-_LAST_FRAMES:], rate, math.inf))
    elif durations is not None:
        most_s = None if clock.breaks else promised_s  # a clock that breaks promises nothing
        last_s = _held_s(times_s, np.array(durations, np.float64) * float(time_base), last_s, most_s)
    line = FrameTimes(
        np.append(times_s, times_s[-1] + last_s),
        rate,
        constant,
        damage,
        deinterlace,
        max_fps=max_fps,
        coded=uses_coded,
        begin=begin,
    )
    if not clock.shifts.any():
        return line
    shifts_s = np.append(clock.shifts, clock.shifts[-1]) * float(time_base)
    repeats = tuple(frame for frame in clock.repeats if pts[frame] in repeated)
    return replace(line, shifts_s=shifts_s, breaks=clock.breaks, repeats=repeats)


def _coding_times(pts: Sequence[int | None]) -> list[int]:
    """Return stamps in their order if they are times of coding that a copy from AVI or MXF left; else nothing."""
    stamps = sorted(tick for tick in pts if tick is not None)
    return stamps if len(stamps) == len(pts) == len(set(stamps)) else []


def _has_holes(coded: Sequence[int], frames: int) -> bool:
    """Return whether times of coding, as many as there are frames, tell of a picture that is held beyond its turn."""
    gaps = np.diff(coded)
    return len(coded) == frames > _LEAST_GAPS and bool(
        (gaps > 0).all() and 2 * gaps.max() >= 3 * np.median(gaps)
    )


def _understated(times_s: NDArray[np.float64], durations: Sequence[int] | None, time_base: Fraction) -> bool:
    """Return whether most frames state half of their time or less: one tick each, as AVI of empty slots does."""
    if durations is None or len(times_s) <= _LEAST_GAPS:
        return False
    stated_s = np.array(durations[:-1], np.float64) * float(time_base)
    return bool(np.median(stated_s / np.diff(times_s)) <= _HALF)


def _within_promise(
    times_s: NDArray[np.float64], durations: Sequence[int], promised_s: float, time_base: Fraction
) -> list[int]:
    """Return durations without those of last frames that reach far beyond the promised end: the clock stepped."""
    bounded = list(durations)
    for index in range(max(0, len(bounded) - _REORDERED), len(bounded)):
        if times_s[index] + bounded[index] * time_base > promised_s + JUMP_S:
            bounded[index] = 0
    return bounded


def _held_s(
    times_s: NDArray[np.float64], durations_s: NDArray[np.float64], usual_s: float, promised_s: float | None
) -> float:
    """Return how long the last frame of a constant rate is shown: as usual, or for as long as frames state."""
    near_s = durations_s[-_REORDERED:]
    end_s = float((times_s[-len(near_s) :] + near_s).max())
    if promised_s is not None:
        end_s = min(end_s, promised_s)
    held_s = end_s - float(times_s[-1])
    # Not where every frame states too long a time, as those of a wrong rate do.
    return held_s if held_s > _HELD * max(usual_s, float(np.median(durations_s))) else usual_s


def _counted_rate(pts: list[int | None], time_base: Fraction, stated: Fraction | None) -> Fraction:
    """Return the rate of frames whose stamps are times of coding, or none.

    It is the stated rate, with two exceptions. In AVI it may be a rate of ticks, of which each frame takes several.
    In ASF it is an average, so a camera's rate that the stamps show replaces it.
    """
    rate = stated or Fraction(25)
    gaps = np.diff(np.unique([tick for tick in pts if tick is not None]))
    if 2 * len(gaps) <= len(pts):
        return rate
    period_s = int(np.median(gaps)) * time_base
    if 2 * np.count_nonzero(gaps == np.median(gaps)) > len(gaps) and rate * period_s > _SEVERAL_TICKS:
        return 1 / period_s
    measured = snap_rate(Fraction(1 / float(gaps.mean() * time_base)).limit_denominator(1001))
    return measured if stated not in STANDARD_RATES and measured in STANDARD_RATES else rate


def likely_clip_rate(
    times_s: NDArray[np.float64], first: int, last: int, stated: Fraction | None, max_fps: float
) -> Fraction:
    """Return the rate that a clip will have if later frames continue like those so far.

    Args:
        times_s: float64 [frames], rising: start of each frame of the source so far.
        first: First frame of the clip.
        last: One past its last frame so far.
        stated: Frame rate in the container, frames per second.
        max_fps: Upper limit of the rate for variable frame rate.
    """
    rate, constant = choose_rate(times_s, np.diff(times_s), stated, [(0, len(times_s))], max_fps)
    return rate if constant else choose_clip_rate(times_s[first:last], rate, max_fps)


def clean_runs(frames: int, damage: tuple[Damage, ...]) -> list[tuple[int, int]]:
    """Return the runs ``[first, last)`` of undamaged frames."""
    runs = []
    first = 0
    for hurt in damage:
        if hurt.first > first:
            runs.append((first, hurt.first))
        first = hurt.last
    if frames > first:
        runs.append((first, frames))
    return runs


def _clean_gaps_s(times_s: NDArray[np.float64], damage: tuple[Damage, ...]) -> NDArray[np.float64]:
    runs = clean_runs(len(times_s), damage)
    gaps = [np.diff(times_s[first:last]) for first, last in runs]
    return np.concatenate(gaps) if gaps else np.zeros(0)


def source_frames(times_s: NDArray[np.float64], first: int, last: int, rate: Fraction) -> NDArray[np.int64]:
    """Return the source frame shown in each slot of a constant-rate clip of frames ``[first, last)``.

    A slot shows the frame that is on screen in its middle. Where the source lies on the grid of ``rate``
    within half a frame this is the identity. Where two frames change within 1.5 ms of the middle, it is the first one
    that no slot shows yet: frames half a frame off the grid would else be repeated and left out by turns. Behind a step
    of the clock it is the one on screen. Frames too short to be seen are left out.

    Args:
        times_s: Start of each frame, as in `FrameTimes`.
        first: First source frame of the span.
        last: One past the last source frame.
        rate: Frames per second of the clip.

    Returns:
        int64 [slots], slots >= 1, non-decreasing, in ``[first, last)``; slots / rate is the span's duration
        within half a frame.
    """
    duration_s = times_s[last] - times_s[first]
    slots = max(1, round(duration_s * float(rate)))
    middles_s = times_s[first] + (np.arange(slots) + 0.5) / float(rate)
    visible = np.flatnonzero(~fleeting(np.diff(times_s[first : last + 1]))) + first
    ends_s = times_s[visible + 1]
    tied_s = ties_s(ends_s - times_s[visible], rate)
    first_ends_s, further_ends_s = (np.maximum.accumulate(ends_s + sign * tied_s) for sign in (1, -1))
    shown: NDArray[np.int64] = np.searchsorted(first_ends_s, middles_s, side="right")
    latest = np.searchsorted(further_ends_s, middles_s, side="right")
    if not np.array_equal(shown, latest):
        at, chosen = -1, []
        for earliest, last in zip(shown.tolist(), latest.tolist(), strict=True):
            at = min(max(at + 1, earliest), last)
            chosen.append(at)
        shown = np.array(chosen, np.int64)
    return visible[np.minimum(shown, len(visible) - 1)]
