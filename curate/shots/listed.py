"""Spans of a source of which a list names segments: every second belongs to exactly one of them, as always."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.shots.spans import (
    MISSING_MIN_S,
    OVER_S,
    TICK_S,
    Span,
    SpanConfig,
    check_span,
    gap_span,
    gaps,
    missing_span,
    spans_between,
    usual_longest_s,
)
from reelweave.curate.shots.types import Transition
from reelweave.curate.sources.segments import Segment

STAGE = "listed"
NOT_LISTED = "not listed"
_NOT_LISTED = "no segment of the list holds these seconds"
MOST_LAYERS = 16
"""Further passes over a film whose segments overlap."""
_SAME_RATE = 0.01
"""Relative difference of two frame rates below which they are the same: 29.97 and 30 count the same frames."""


@dataclass(frozen=True)
class _Placed:
    """One segment and its frames in the source.

    Attributes:
        number: Place of the segment among those of the source.
        span: Its frames; with a fault where they become no clip.
    """

    number: int
    span: Span


def frames_of(segment: Segment, times_s: NDArray[np.float64]) -> tuple[int, int]:
    """Return the frames ``[first, last)`` of a segment: from the first one shown at its start or later, to its end.

    The last one is the last that begins to be shown before the end. Times are compared to half a millisecond,
    as lists round them.

    Args:
        segment: The segment.
        times_s: Display times of the source's frames and the end of the last one, as in `FrameTimes`.
    """
    frames = len(times_s) - 1
    if segment.unit == "frame":
        return min(int(segment.start), frames), min(int(segment.end), frames)
    first, last = np.searchsorted(times_s[:-1], [segment.start - TICK_S, segment.end - TICK_S])
    return int(first), int(last)


def listed_spans(
    timeline: FrameTimes,
    transitions: list[Transition],
    promised_s: float | None,
    config: SpanConfig,
    segments: Sequence[Segment],
) -> list[Span]:
    """Return adjacent spans from 0 to the end: clips of the segments, refused segments, and what no segment holds.

    Of segments that overlap, the one that begins first becomes a clip, and of those the one that ends first; the
    others are refused, or their spans follow behind the adjacent ones (``config.overlapping = "keep"``). A refused
    segment accounts for its frames that no clip holds, or for none.

    Args:
        timeline: Display times of the source.
        transitions: Transitions of the source; only ``config.listed = "shots"`` looks at them.
        promised_s: Duration in the header, seconds.
        config: Lengths of clips.
        segments: Segments, sorted.
    """
    times_s = timeline.times_s
    located = sorted(
        (_locate_segment(index, segment, timeline, config) for index, segment in enumerate(segments)),
        key=lambda candidate: (candidate.span.first, candidate.span.last, candidate.number),
    )
    chosen, over, refused = _choose_segments(located, segments, config)
    clip_spans = [span for candidate in chosen for span in _clips(candidate, timeline, transitions, config)]
    begin = [_Placed(-1, lead)] if (lead := _lost_begin(timeline, located, config)) is not None else []
    clip_spans += _spans_left(times_s, [candidate.span for candidate in chosen], begin + refused)
    clip_spans.sort(key=lambda span: span.first)
    clip_spans += _without_frames(times_s, clip_spans, refused)
    clip_spans.sort(key=lambda span: (span.first, span.last))
    clip_spans += missing_span(timeline, promised_s)
    return clip_spans + _further(
        clip_spans, [span for candidate in over for span in _clips(candidate, timeline, transitions, config)]
    )


def layers_of(spans: Sequence[Span]) -> list[list[int]]:
    """Return places of spans so that those of one layer are sorted and disjoint: all of them, if they are adjacent.

    Args:
        spans: Spans of `listed_spans`.
    """
    layers: list[list[int]] = []
    for index, span in enumerate(spans):
        free = (layer_indices for layer_indices in layers if spans[layer_indices[-1]].last <= span.first)
        if (layer := next(free, None)) is None:
            layers.append([index])
        else:
            layer.append(index)
    return layers or [[]]


def _choose_segments(
    located: Sequence[_Placed], segments: Sequence[Segment], config: SpanConfig
) -> tuple[list[_Placed], list[_Placed], list[_Placed]]:
    """Return the segments that become adjacent clips, those that overlap them, and those that are refused."""
    chosen: list[_Placed] = []
    over: list[_Placed] = []
    refused: list[_Placed] = []
    by_frames: dict[tuple[int, int], _Placed] = {}
    ends: list[int] = []  # of each further layer
    for candidate in located:
        first, last = candidate.span.first, candidate.span.last
        if candidate.span.fault is None and (first, last) in by_frames:
            candidate = replace(
                candidate,
                span=_repeat_span(
                    candidate.span, segments[candidate.number], by_frames[first, last], segments
                ),
            )
        elif candidate.span.fault is None and chosen and first < chosen[-1].span.last:
            layer = next((index for index, end in enumerate(ends) if end <= first), len(ends))
            if config.overlapping == "keep" and layer < MOST_LAYERS:
                ends[layer : layer + 1] = [last]
                by_frames[first, last] = candidate
                over.append(candidate)
                continue
            candidate = replace(
                candidate,
                span=_overlapping(candidate.span, segments[candidate.number], chosen[-1], segments, config),
            )
        if candidate.span.fault is None:
            by_frames[first, last] = candidate
            chosen.append(candidate)
        else:
            refused.append(candidate)
    return chosen, over, refused


def _further(clip_spans: Sequence[Span], further: Sequence[Span]) -> list[Span]:
    """Return the spans of segments that overlap others, sorted; a shot that lies in both is a clip once."""
    frame_ranges = {(span.first, span.last) for span in clip_spans if span.fault is None}
    spans: list[Span] = []
    for span in further:
        if span.fault is None and (span.first, span.last) in frame_ranges:
            span = _faulty(span, "the same shot is a clip of another listed segment, which overlaps this one")
        elif span.fault is None:
            frame_ranges.add((span.first, span.last))
        spans.append(span)
    return sorted(spans, key=lambda span: (span.first, span.last))


def _locate_segment(index: int, segment: Segment, timeline: FrameTimes, config: SpanConfig) -> _Placed:
    first, last = frames_of(segment, timeline.times_s)
    last = max(first, last)
    start_s, end_s = float(timeline.times_s[first]), float(timeline.times_s[last])
    span = Span(first, last, start_s, end_s, segment=index)
    if (reason := _outside(segment, timeline, first, last)) is not None:
        return _Placed(index, _faulty(span, f"{segment} {reason}"))
    if config.listed == "shots":
        return _Placed(index, span)
    if first < (lead := _short_lead(timeline)) < last:
        span = replace(span, first=lead, start_s=float(timeline.times_s[lead]))
    span = _checked_whole(span, timeline, config)
    return _Placed(index, span if span.fault is None else replace(span, fault=f"{segment}: {span.fault}"))


def _short_lead(timeline: FrameTimes) -> int:
    """Return the number of frames that cannot be decoded at a film's begin, or 0 where they last too long to miss."""
    lead = next((hurt.last for hurt in timeline.damage if hurt.first == 0), 0)
    return lead if timeline.times_s[lead] <= MISSING_MIN_S else 0


def _lost_begin(timeline: FrameTimes, located: Sequence[_Placed], config: SpanConfig) -> Span | None:
    """Return the span of what cannot be decoded before a segment that begins there, behind which its clip begins."""
    lead, times_s = _short_lead(timeline), timeline.times_s
    if config.listed == "shots" or not lead or all(placed.span.first != lead for placed in located):
        return None
    return Span(0, lead, 0.0, float(times_s[lead]), timeline.damage[0].reason, "failed", "decode")


def _outside(segment: Segment, timeline: FrameTimes, first: int, last: int) -> str | None:
    """Return why a film does not hold the frames of a segment, or None."""
    end_s = float(timeline.times_s[-1])
    if segment.unit == "frame":
        usual = timeline.frames / end_s
        rates = (float(timeline.rate), usual)
        if segment.fps and all(abs(segment.fps - rate) > _SAME_RATE * rate for rate in rates):
            return f"are counted at {segment.fps:g} frames per second, and the film has {usual:.5g}"
        if segment.end > timeline.frames:
            return f"reach beyond the film, which has {timeline.frames} frames"
        return None
    if segment.start >= end_s - TICK_S:
        return f"lies outside the film, which ends at {end_s:.3f} s"
    if segment.end > end_s + MISSING_MIN_S:
        return f"reaches beyond the film, which ends at {end_s:.3f} s"
    return "holds no frame" if first == last else None


def _checked_whole(span: Span, timeline: FrameTimes, config: SpanConfig) -> Span:
    """Return a span, with the fault for which it cannot be one clip."""
    times_s, first, last = timeline.times_s, span.first, span.last
    # Damage within the segment.
    for hurt in timeline.damage:
        if hurt.first < last and first < hurt.last:
            return replace(span, fault=hurt.reason, fault_state="failed", stage="decode")
    # Where the clock jumps or the picture changes its shape, one clip would hide it.
    if any(first < broken < last for broken in (*timeline.breaks, *timeline.repeats)):
        return _faulty(span, "the clock of the film jumps within the segment")
    if reason := _shape_change(timeline, first, last):
        return _faulty(span, reason)
    # A frame that is held too long: pictures are missing.
    longest_s = usual_longest_s(timeline, config)
    if held := gaps(times_s, first, last, longest_s):
        gap = gap_span(times_s, *held[0], longest_s)
        return replace(
            gap, first=first, last=last, start_s=span.start_s, end_s=span.end_s, segment=span.segment
        )
    # A segment that people chose is not cut at the longest clip, but refused.
    duration_s = span.end_s - span.start_s
    if duration_s > config.max_clip_s + OVER_S:
        return replace(
            span,
            fault=f"{duration_s:.2f} s is longer than spans.max_clip_s; raise it, or set spans.listed=shots",
            fault_state="filtered",
            stage="spans",
            score=duration_s,
            threshold=config.max_clip_s,
        )
    return check_span(span, config)


def _shape_change(timeline: FrameTimes, first: int, last: int) -> str | None:
    """Return in words where pictures change their shape within a segment, or None."""
    for old, new in pairwise(timeline.shapes):
        if first < new.first < last:
            at_s = timeline.times_s[new.first]
            return f"pictures change {old.change_to(new)} at {at_s:.2f} s; spans.listed=shots splits it there"
    return None


def _faulty(span: Span, reason: str) -> Span:
    return replace(span, fault=reason, fault_state="filtered", stage=STAGE)


def _repeat_span(span: Span, segment: Segment, earlier: _Placed, segments: Sequence[Segment]) -> Span:
    if segment.span == segments[earlier.number].span:
        return _faulty(
            span, f"{segment} is listed twice, with another caption or other columns; the first is kept"
        )
    return _faulty(span, f"{segment} has the same frames as {segments[earlier.number]}, which is kept")


def _overlapping(
    span: Span, segment: Segment, earlier: _Placed, segments: Sequence[Segment], config: SpanConfig
) -> Span:
    first = segments[earlier.number]
    if config.overlapping == "keep":
        return _faulty(
            span, f"{segment} overlaps {first}, and more than {MOST_LAYERS} other segments lie there already"
        )
    return _faulty(
        span,
        f"{segment} overlaps {first}, which begins earlier or ends first; spans.overlapping=keep makes a clip of each",
    )


def _clips(
    located: _Placed, timeline: FrameTimes, transitions: list[Transition], config: SpanConfig
) -> Iterator[Span]:
    """Yield the clips of a segment."""
    if config.listed == "whole":
        yield located.span
        return
    for span in spans_between(timeline, transitions, located.span.first, located.span.last, config):
        yield replace(span, segment=located.number)


def _spans_left(
    times_s: NDArray[np.float64], chosen: Sequence[Span], refused: Sequence[_Placed]
) -> Iterator[Span]:
    """Yield the spans of all frames that no clip holds, each of the first refused segment that holds it, if any."""
    frames = len(times_s) - 1
    claims: list[tuple[int, int, Span | None]] = []
    covered = 0
    for candidate in refused:  # sorted: what an earlier one covers is that one's
        begin, end = max(covered, candidate.span.first), candidate.span.last
        if covered < begin:
            claims.append((covered, begin, None))
        if begin < end:
            claims.append((begin, end, candidate.span))
            covered = end
        else:
            covered = max(covered, begin)
    claims.append((covered, frames, None))
    index = 0
    for begin, end, span in claims:
        while index < len(chosen) and chosen[index].last <= begin:
            index += 1
        at, inner = begin, index
        while at < end:
            held = chosen[inner] if inner < len(chosen) and chosen[inner].first < end else None
            piece_end = end if held is None else max(at, held.first)
            if at < piece_end:
                yield _piece(times_s, at, piece_end, span)
            at = end if held is None else max(piece_end, held.last)
            inner += 1


def _without_frames(
    times_s: NDArray[np.float64], clip_spans: Sequence[Span], refused: Sequence[_Placed]
) -> list[Span]:
    """Return a span without frames for each refused segment that accounts for none, where a span ends."""
    accounted = {span.segment for span in clip_spans}
    ends = [span.last for span in clip_spans]
    spans = []
    for candidate in refused:
        if candidate.number not in accounted:
            at = ends[min(bisect.bisect_left(ends, candidate.span.first), len(ends) - 1)]
            spans.append(_piece(times_s, at, at, candidate.span))
    return spans


def _piece(times_s: NDArray[np.float64], first: int, last: int, span: Span | None) -> Span:
    start_s, end_s = float(times_s[first]), float(times_s[last])
    if span is None:
        return Span(first, last, start_s, end_s, _NOT_LISTED, "filtered", NOT_LISTED)
    return replace(span, first=first, last=last, start_s=start_s, end_s=end_s)
