"""From shots to spans: every second of a source belongs to exactly one span."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pydantic import BaseModel, Field

from curate.shots import Transition, pieces
from curate.timeline import Timeline, clean_runs

# A container that promises this much more than it holds was cut off; less is rounding and sound.
MISSING_MIN_S = 0.5
MISSING_MIN_SHARE = 0.02


class SpanConfig(BaseModel, frozen=True, extra="forbid"):
    """How shots become clip spans."""

    max_clip_s: float = Field(
        10.0, gt=0, description="longer shots are cut into equal parts of at most about this length"
    )


@dataclass(frozen=True)
class Span:
    """Frames ``[first, last)`` of a source.

    Attributes:
        first: first frame, in shown order.
        last: one past the last frame; equal to ``first`` for a span that holds no frame.
        start_s: when it begins, seconds after the source's first frame.
        end_s: when it ends.
        fault: why it can be no clip, or None.
        fault_state: "filtered" or "failed" when there is a fault.
    """

    first: int
    last: int
    start_s: float
    end_s: float
    fault: str | None = None
    fault_state: str = ""


def spans(
    timeline: Timeline, transitions: list[Transition], promised_s: float | None, config: SpanConfig
) -> list[Span]:
    """Spans that lie side by side from 0 to the end, or to the promised end when the source is cut off.

    Frames inside a gradual transition and damaged frames become spans of their own, with a fault.
    """
    times_s = timeline.times_s
    found: list[Span] = []

    def add(first: int, last: int, fault: str | None = None, state: str = "") -> None:
        found.append(Span(first, last, float(times_s[first]), float(times_s[last]), fault, state))

    for hurt in timeline.damage:
        if hurt.last > hurt.first:
            add(hurt.first, hurt.last, hurt.reason, "failed")
    runs = clean_runs(timeline.frames, timeline.damage)
    for piece in pieces(transitions, timeline.frames):
        for run_first, run_last in runs:
            first, last = max(piece.first, run_first), min(piece.end, run_last)
            if first >= last:
                continue
            if piece.kind == "transition":
                add(first, last, "blended frames of a gradual transition", "filtered")
            else:
                for part_first, part_last in _parts(timeline, first, last, config.max_clip_s):
                    add(part_first, part_last)
    found.sort(key=lambda span: span.first)
    end_s = float(times_s[-1])
    missing_s = (promised_s or 0) - end_s
    if promised_s and missing_s > max(MISSING_MIN_S, MISSING_MIN_SHARE * promised_s):
        fault = f"the file is cut off: it promises {promised_s:.2f} s and holds {end_s:.2f} s"
        found.append(Span(timeline.frames, timeline.frames, end_s, promised_s, fault, "failed"))
    return found


def _parts(timeline: Timeline, first: int, last: int, max_clip_s: float) -> list[tuple[int, int]]:
    times_s = timeline.times_s
    parts = max(1, math.ceil((times_s[last] - times_s[first]) / max_clip_s - 1e-9))
    inner_s = np.linspace(times_s[first], times_s[last], parts + 1)[1:-1]
    inner = first + np.searchsorted(times_s[first:last], inner_s - 1e-9)
    return list(pairwise(sorted({first, *(int(bound) for bound in inner), last})))
