"""Clips of listed segments, known before decoding; in place of `reelweave.curate.source_pass.lookahead`."""

import bisect
import math
from array import array
from collections.abc import Sequence

from reelweave.curate.shots.spans import OVER_S, TICK_S, SpanConfig
from reelweave.curate.sources.segments import Segment


class ListedLookahead:
    """Clip of each frame of a source whose segments a list names and that stay whole.

    What it says of segments with a fault may be wrong, which costs time and changes no result.

    Args:
        segments: Segments of the source, sorted; all in seconds, or all in frames.
        config: Lengths of clips.
        fps: Frame rate of the source.

    Attributes:
        lag: Number of frames by which predicted frames must be behind decoded ones.
    """

    def __init__(self, segments: Sequence[Segment], config: SpanConfig, fps: float) -> None:
        self._counted = segments[0].unit == "frame"
        per_s = fps if self._counted else 1.0
        tick = 0.0 if self._counted else TICK_S
        self._starts: list[float] = []
        self._ends: list[float] = []
        for segment in segments:
            length_s = (segment.end - segment.start) / per_s
            likely = config.min_clip_s - TICK_S <= length_s <= config.max_clip_s + OVER_S
            if likely and (not self._ends or segment.start - tick >= self._ends[-1]):
                self._starts.append(segment.start - tick)
                self._ends.append(segment.end - tick)
        self.lag = math.ceil(fps) + 1
        self._place: int | None = None
        self._first: int | None = None  # of the clip in work
        self._end: int | None = None

    @property
    def known_end(self) -> int | None:
        """End of the clip of the last frame, where it is known by now."""
        return self._end

    def is_certain(self, frame: int, times_s: "array[float]") -> bool:
        """Return True: nothing that comes later changes a listed segment."""
        del frame, times_s
        return True

    def clip_of(self, frame: int, times_s: "array[float]", *, ended: bool = False) -> int | None:
        """Return the first frame of the clip that a frame belongs to, or None; see `Lookahead.clip_of`."""
        del ended
        at = float(frame) if self._counted else times_s[frame]
        index = bisect.bisect_right(self._starts, at) - 1
        if index < 0 or at >= self._ends[index]:
            self._place = self._first = self._end = None
        elif index != self._place:
            # A part of a source may begin within a segment, whose first frame it does not hold.
            begins = frame > 0 or self._starts[index] <= 0 or self._counted
            self._place, self._first = index, frame if begins else None
            end = int(self._ends[index]) if self._counted else bisect.bisect_left(times_s, self._ends[index])
            self._end = end if end < len(times_s) else None
        return self._first


def listed_lookahead(
    segments: Sequence[Segment], config: SpanConfig, fps: float, *, within: bool
) -> ListedLookahead | None:
    """Return the lookahead of listed segments, or None where a decode does not show which frame is whose.

    Args:
        segments: Segments of the source, sorted.
        config: Settings of spans.
        fps: Frame rate of the source.
        within: True if frames are counted from within the source.
    """
    units = {segment.unit for segment in segments}
    if config.listed != "whole" or len(units) > 1 or (within and "frame" in units):
        return None
    return ListedLookahead(segments, config, fps)
