"""Spans of a source, made from its shots: every second of a source belongs to exactly one span."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from reelweave.curate.frames.decode.missing_pictures import without_picture
from reelweave.curate.frames.frame_times import FrameTimes, clean_runs
from reelweave.curate.shots import Transition, segments
from reelweave.loader.settings import Settings

# A file is truncated if its header promises this much more than it holds; less is rounding and sound.
MISSING_MIN_S = 0.5
MISSING_MIN_SHARE = 0.02

TICK_S = 0.0005  # rounding of container ticks, which are at least a millisecond
_USUAL_FRAMES = 3  # usual frame durations that a frame of a slow film may last without being a gap
OVER_S = 0.1
"""Time by which a part may exceed max_clip_s, so that it can end on a frame."""


class SpanConfig(Settings):
    """Splitting of shots into clip spans."""

    ADDED: ClassVar = frozenset({"listed", "overlapping"})

    min_clip_s: float = Field(
        2.0, ge=0, description="minimum clip length, seconds; shorter shots are filtered"
    )
    max_clip_s: float = Field(
        10.0,
        gt=0,
        description="maximum clip length, seconds; longer shots are split, each part at the next frame, at most 0.1 s"
        " later",
    )
    crop_s: float = Field(
        0.0,
        ge=0,
        description="time cropped from both ends of every shot, seconds, against imprecise shot boundaries",
    )
    max_gap_s: float = Field(
        5.0,
        gt=0,
        description="maximum duration of a frame within a clip, seconds; a longer one is filtered as a gap between"
        " shots. At least three times the source's usual frame duration is allowed, and never more than"
        " max_clip_s",
    )
    long_shots: Literal["full", "equal", "stride"] = Field(
        "full",
        description="splitting of long shots. full: parts of max_clip_s, the last but one shortened where the last"
        " would be too short. equal: equal parts, cut in a second pass. stride: parts of max_clip_s and the rest",
    )

    listed: Literal["whole", "shots"] = Field(
        "whole",
        description="splitting of segments that a list names. whole: each is one clip, whatever shots it holds. shots:"
        " each is split at its shots, and long shots as long_shots says",
    )
    overlapping: Literal["refuse", "keep"] = Field(
        "refuse",
        description="listed segments that overlap one that begins earlier. refuse: they are filtered. keep: each is"
        " a clip as well, for which the film is decoded again",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_clip_s > self.max_clip_s:
            raise ValueError(
                f"min_clip_s = {self.min_clip_s:g} is above max_clip_s = {self.max_clip_s:g}: no clip could be made"
            )
        return self


@dataclass(frozen=True)
class Span:
    """Frames ``[first, last)`` of a source.

    Attributes:
        first: First frame, in display order.
        last: One past the last frame; equal to ``first`` for a span without frames.
        start_s: Start, seconds after the source's first frame.
        end_s: End, seconds after the source's first frame.
        fault: Reason why the span becomes no clip, or None.
        fault_state: "filtered" or "failed" for a span with a fault.
        stage: Stage that found the fault.
        score: Value that a rule decided on.
        threshold: Threshold of that rule.
        segment: Place of the segment that a list names among those of its source; None outside of all.
        ends_by: Kind of the change at its end, or "".
        ends_probability: Probability that this is a transition; None where nothing tells.
        inside: Kind of the likeliest change inside a clip that ends no shot, or "".
        inside_s: Time of the first frame behind that change, seconds after the source's first frame.
        inside_probability: Probability that it is a transition.
    """

    first: int
    last: int
    start_s: float
    end_s: float
    fault: str | None = None
    fault_state: str = ""
    stage: str = ""
    score: float | None = None
    threshold: float | None = None
    segment: int | None = None
    ends_by: str = ""
    ends_probability: float | None = None
    inside: str = ""
    inside_s: float | None = None
    inside_probability: float | None = None


def spans(
    timeline: FrameTimes, transitions: list[Transition], promised_s: float | None, config: SpanConfig
) -> list[Span]:
    """Return adjacent spans from 0 to the end, or to the promised end when the source is truncated.

    Blended frames of gradual transitions, damaged frames, gaps and cropped frames become spans of their own,
    with a fault.
    """
    clip_spans = spans_between(timeline, transitions, 0, timeline.frames, config)
    return clip_spans + missing_span(timeline, promised_s)


def spans_between(
    timeline: FrameTimes, transitions: list[Transition], begin: int, end: int, config: SpanConfig
) -> list[Span]:
    """Return adjacent spans of frames ``[begin, end)``, as `spans` of a source that holds no others."""
    times_s = timeline.times_s
    clip_spans: list[Span] = []

    def add(first: int, last: int, fault: str | None = None, state: str = "", stage: str = "") -> None:
        if first < last:
            start_s, end_s = float(times_s[first]), float(times_s[last])
            clip_spans.append(Span(first, last, start_s, end_s, fault, state, stage))

    # Damaged frames are failed spans.
    for hurt in timeline.damage:
        add(max(hurt.first, begin), min(hurt.last, end), hurt.reason, "failed", "decode")
    longest_s = usual_longest_s(timeline, config)
    # Runs of whole frames between damage and gaps of the time stamps.
    runs: list[tuple[int, int]] = []
    for run_first, run_last in clean_runs(timeline.frames, timeline.damage):
        first, clean_last = max(run_first, begin), min(run_last, end)
        for gap in gaps(times_s, first, clean_last, longest_s) if first < clean_last else ():
            clip_spans.append(gap_span(times_s, *gap, longest_s))
            runs.append((first, gap[0]))
            first = gap[1]
        runs.append((first, clean_last))
    # Each shot within each run: a transition, what is cropped at its ends, and its parts.
    for piece in segments(transitions, timeline.frames):
        for run_first, run_last in runs:
            first, last = max(piece.first, run_first), min(piece.end, run_last)
            if first >= last:
                continue
            if piece.kind == "transition":
                add(first, last, "blended frames of a gradual transition", "filtered", "shots")
                continue
            inner_first, inner_last = _crop_ends(times_s, first, last, config.crop_s)
            add(first, inner_first, "cropped at the start of a shot", "filtered", "spans")
            add(inner_last, last, "cropped at the end of a shot", "filtered", "spans")
            for part_first, part_last in _parts(times_s, inner_first, inner_last, config):
                add(part_first, part_last)
    return [check_span(span, config) for span in sorted(clip_spans, key=lambda span: span.first)]


def missing_span(timeline: FrameTimes, promised_s: float | None) -> list[Span]:
    """Return the spans behind the last frame: packets that give no picture, and what a truncated source promises."""
    behind: list[Span] = []
    end_s, frames = float(timeline.times_s[-1]), timeline.frames
    if (undecoded := timeline.undecoded) is not None:
        fault = without_picture(undecoded.packets, undecoded.packets)
        behind.append(Span(frames, frames, end_s, end_s + undecoded.lasts_s, fault, "failed", "decode"))
    return behind + cut_off_span(timeline, promised_s)


def cut_off_span(timeline: FrameTimes, promised_s: float | None) -> list[Span]:
    """Return the span that a truncated source promises and does not hold, if any."""
    end_s = float(timeline.times_s[-1])
    if timeline.undecoded is not None:
        end_s += timeline.undecoded.lasts_s
    missing_s = (promised_s or 0) - end_s
    if promised_s and missing_s > max(MISSING_MIN_S, MISSING_MIN_SHARE * promised_s):
        fault = f"the file is cut off: it promises {promised_s:.2f} s and holds {end_s:.2f} s"
        return [Span(timeline.frames, timeline.frames, end_s, promised_s, fault, "failed", "decode")]
    return []


def further_span(timeline: FrameTimes, begins: int) -> Span:
    """Return the span, without a length that is known, of a film behind this one, by its first byte or 0."""
    end_s = float(timeline.times_s[-1])
    where, how = (
        (f" (from byte {begins} on)", f", as by `tail -c +{begins + 1} FILE`") if begins else ("", "")
    )
    fault = f"another film lies behind this one in the file{where} and is not read, as in players; split the file{how}"
    return Span(timeline.frames, timeline.frames, end_s, end_s, fault, "failed", "decode")


def left_out_span(timeline: FrameTimes, words: str, promised_s: float | None) -> Span:
    """Return the span of pictures behind the last frame that are left out, as far as the source promises them."""
    end_s = float(timeline.times_s[-1])
    return Span(
        timeline.frames, timeline.frames, end_s, max(end_s, promised_s or 0), words, "failed", "decode"
    )


def unread_span(timeline: FrameTimes, error: str) -> Span:
    """Return the span, without a length that is known, of what an error of the container keeps from being read."""
    end_s = float(timeline.times_s[-1])
    fault = f"reading ends before the end of the file: {error}"
    return Span(timeline.frames, timeline.frames, end_s, end_s, fault, "failed", "decode")


def usual_longest_s(timeline: FrameTimes, config: SpanConfig) -> float:
    """Return `longest_hold_s` of a source."""
    return longest_hold_s(config, float(np.median(np.diff(timeline.times_s))))


def longest_hold_s(config: SpanConfig, usual_s: float = 0.0) -> float:
    """Return the maximum duration of a frame within a clip, in seconds.

    Args:
        config: Span settings.
        usual_s: Usual frame duration of the source, seconds, where known.
    """
    return min(max(config.max_gap_s, _USUAL_FRAMES * usual_s), config.max_clip_s) + TICK_S


def gaps(times_s: NDArray[np.float64], first: int, last: int, longest_s: float) -> list[tuple[int, int]]:
    """Return the runs of frames in ``[first, last)`` that each last longer than ``longest_s``."""
    held = np.diff(times_s[first : last + 1]) > longest_s
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0)) + first
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


def gap_span(times_s: NDArray[np.float64], first: int, last: int, longest_s: float) -> Span:
    """Return the span of a gap, with its fault."""
    start_s, end_s = float(times_s[first]), float(times_s[last])
    held_s = float(np.diff(times_s[first : last + 1]).max())
    fault = (
        f"a picture is held for {held_s:.2f} s, which is a gap between shots, as pauses and joined parts whose clock"
        " jumps leave it (spans.max_gap_s)"
    )
    return Span(first, last, start_s, end_s, fault, "filtered", "gaps", held_s, longest_s)


def long_enough(duration_s: float, config: SpanConfig) -> bool:
    """Return True when a clip of this duration is allowed."""
    return duration_s >= config.min_clip_s - TICK_S


def check_span(span: Span, config: SpanConfig) -> Span:
    """Return a span, with a fault if it is shorter than min_clip_s."""
    duration_s = span.end_s - span.start_s
    if span.fault is not None or long_enough(duration_s, config):
        return span
    return replace(
        span,
        fault=f"{duration_s:.2f} s is shorter than spans.min_clip_s",
        fault_state="filtered",
        stage="spans",
        score=duration_s,
        threshold=config.min_clip_s,
    )


def _crop_ends(times_s: NDArray[np.float64], first: int, last: int, crop_s: float) -> tuple[int, int]:
    """Return the frames of a shot at least ``crop_s`` from both ends; an empty run when the shot is too short."""
    if crop_s == 0:
        return first, last
    inside = np.searchsorted(times_s, [times_s[first] + crop_s - 1e-9, times_s[last] - crop_s + 1e-9])
    inner_first, inner_last = int(inside[0]), int(inside[1]) - 1
    return (inner_first, inner_last) if inner_first < inner_last else (last, last)


def part_end(
    times_s: Sequence[float] | NDArray[np.float64], first: int, last: int, config: SpanConfig
) -> int:
    """Return the end of the first part of a shot, frames ``[first, last)``, for ``full`` or ``stride``.

    The rest is split by the same rule, so the beginning can be split before the end of the shot is known.
    Then ``last`` is a frame that the shot reaches beyond. The result is final if it is not ``last`` and the
    shot is longer than max_clip_s + min_clip_s.
    """
    start_s, left_s = times_s[first], times_s[last] - times_s[first]
    if left_s <= config.max_clip_s + 1e-9:
        return last
    end_s = start_s + config.max_clip_s
    giving_way_s = times_s[last] - config.min_clip_s
    if config.long_shots == "full" and start_s + config.min_clip_s <= giving_way_s < end_s:
        end_s = giving_way_s
        return max(first + 1, bisect.bisect_right(times_s, end_s + 1e-9, first, last) - 1)
    end = bisect.bisect_left(times_s, end_s - 1e-9, first, last)
    return max(first + 1, end if times_s[end] <= end_s + OVER_S else end - 1)


def _parts(times_s: NDArray[np.float64], first: int, last: int, config: SpanConfig) -> list[tuple[int, int]]:
    if first >= last:
        return []
    if config.long_shots == "equal":
        duration_s = float(times_s[last] - times_s[first])
        parts = max(1, math.ceil(duration_s / config.max_clip_s - 1e-9))
        inner_s = np.linspace(times_s[first], times_s[last], parts + 1)[1:-1]
        inner = first + np.searchsorted(times_s[first:last], inner_s - 1e-9)
        equal = pairwise(sorted({first, *(int(bound) for bound in inner), last}))
        # Long frame durations may make a part too long.
        return [part for bounds in equal for part in _limit_length(times_s, *bounds, config)]
    return _one_by_one(times_s, first, last, config)


def _limit_length(
    times_s: NDArray[np.float64], first: int, last: int, config: SpanConfig
) -> list[tuple[int, int]]:
    if times_s[last] - times_s[first] <= config.max_clip_s + OVER_S:
        return [(first, last)]
    return _one_by_one(times_s, first, last, config)


def _one_by_one(
    times_s: NDArray[np.float64], first: int, last: int, config: SpanConfig
) -> list[tuple[int, int]]:
    bounds = [first]
    while bounds[-1] < last:
        bounds.append(part_end(times_s, bounds[-1], last, config))
    return list(pairwise(bounds))
