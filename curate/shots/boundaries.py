"""Changes at which spans end, and the likeliest one that a clip still holds, with kind and probability."""

import bisect
from collections.abc import Sequence
from dataclasses import replace

from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.shots.colour.calibration import probability_of
from reelweave.curate.shots.colour.detector import REACH
from reelweave.curate.shots.spans import Span
from reelweave.curate.shots.types import Candidate, ShotDetector, Transition, WeighingDetector, overlap

LEAST = 0.05
"""Probability below which a change inside a clip is not named."""

FORCED = "change"
"""Kind of a boundary where the picture's size or rotation changes, or the clock of pictures or of sound jumps."""

_NAMES = {"abrupt": "cut"}


def candidates_of(detector: ShotDetector) -> list[Candidate]:
    """Return what a detector weighed, once it has ended; nothing of one that gives no probabilities."""
    return detector.candidates() if isinstance(detector, WeighingDetector) else []


def name_boundaries(
    parts: Sequence[Span],
    transitions: Sequence[Transition],
    candidates: Sequence[Candidate],
    line: FrameTimes,
) -> list[Span]:
    """Return spans with the change at which each ends, and the likeliest change that each clip holds.

    Args:
        parts: Spans of a source.
        transitions: Transitions at which its shots end.
        candidates: Changes that were weighed, reported or not.
        line: Timeline of the source.
    """
    # The likeliest candidate of each place; what is reported without one was found or forced otherwise.
    weighed: dict[Transition, Candidate] = {}
    for candidate in candidates:
        other = weighed.get(candidate.transition)
        if other is None or probability_of(candidate) > probability_of(other):
            weighed[candidate.transition] = candidate
    forced = set(line.borders)
    ends = {change.start_frame + 1: change for change in transitions}
    reported = sorted(transitions, key=lambda change: change.start_frame)
    doubted = sorted(
        (candidate for change, candidate in weighed.items() if not _is_beside(change, reported)),
        key=lambda candidate: candidate.transition.start_frame,
    )
    starts = [candidate.transition.start_frame for candidate in doubted]

    def named(span: Span) -> Span:
        if change := ends.get(span.last):
            seen = weighed.get(change)
            kind, probability = change.kind if change.end_frame not in forced else FORCED, None
            if seen is not None:
                kind, probability = _NAMES.get(seen.kind, seen.kind), round(probability_of(seen), 4)
            span = replace(span, ends_by=kind, ends_probability=probability)
        if span.fault is not None:
            return span
        # Candidates that lie wholly inside.
        inside = doubted[bisect.bisect_left(starts, span.first) : bisect.bisect_left(starts, span.last)]
        inside = [each for each in inside if each.transition.end_frame < span.last]
        surest = max(inside, key=probability_of, default=None)
        if surest is None or (likely := probability_of(surest)) < LEAST:
            return span
        return replace(
            span,
            inside=_NAMES.get(surest.kind, surest.kind),
            inside_s=float(line.times_s[surest.transition.end_frame]),
            inside_probability=round(likely, 4),
        )

    return [named(span) for span in parts]


def _is_beside(change: Transition, reported: Sequence[Transition]) -> bool:
    """Return whether a change belongs to one of the reported transitions, which are sorted and disjoint."""
    at = bisect.bisect_left(reported, change.start_frame, key=lambda other: other.start_frame)
    return any(overlap(change, other, REACH) for other in reported[max(at - 1, 0) : at + 1])
