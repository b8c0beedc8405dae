"""Sound of one span after the other, read ahead of its pictures."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.cut.audio import READ_BEFORE_S, Sound, sound_of
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.feed import Feed
from reelweave.curate.frames.container.encryption import is_encrypted
from reelweave.curate.frames.container.stream_choice import SoundChoice
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.sound_clock import SoundClock
from reelweave.curate.shots.spans import Span
from reelweave.loader.base.operations import charged

_UNKNOWN = "the clock of its pictures steps back or jumps before it, and that of its sound does not"
_SKEW_S = 5  # maximum distance of sound behind its pictures in a file


class SpanSound:
    """Sound of the spans of one source.

    Args:
        feed: Packets of the source, read ahead.
        choice: Sound stream of the source, or why it has none.
        timeline: Timeline of the source.
        ticks: Stamp of each frame, and the end of the last one, int64 [frames + 1].
        time_base: Seconds per tick.
        clock: Repaired clock of the sound, or None where its stamps are right.
        config: Clip settings.
    """

    def __init__(
        self,
        feed: Feed,
        choice: SoundChoice,
        timeline: FrameTimes,
        ticks: NDArray[np.int64],
        time_base: Fraction,
        clock: SoundClock | None,
        config: CutConfig,
    ) -> None:
        self._feed, self._timeline, self._ticks, self._time_base = feed, timeline, ticks, time_base
        self._stream, self._fault = choice.stream, choice.fault
        self._clock, self._config = clock, config

    def keep_from_pts(self, span: Span) -> int:
        """Return the stamp of the first sound that a span needs, in ticks of the sound."""
        start_s = self._start_s(span)
        return self._pts((self._begin_s(span) if start_s is None else start_s) - READ_BEFORE_S)

    @charged("sound")
    def of(self, span: Span, duration_s: Fraction) -> Sound:
        """Return the sound of a span whose clip lasts so long."""
        stream, start_s = self._stream, self._start_s(span)
        if stream is None:
            return Sound(fault=self._fault)
        if start_s is None:
            return Sound(fault=_UNKNOWN)
        shown_s = self._begin_s(span) + duration_s + _SKEW_S
        pts: float = round(shown_s / self._time_base)
        pictures = math.inf
        if self._timeline.shifts_s is not None and self._clock is not None:
            line = self._timeline
            shown = np.searchsorted(line.times_s, span.start_s + float(duration_s + _SKEW_S))
            pts, pictures = math.inf, math.ceil(shown / line.frames * self._clock.pictures)
        self._feed.read_sound(self._pts(start_s + duration_s), pts, pictures)
        if self._feed.overflow:
            return Sound(fault="its sound takes too much memory")
        if any(map(is_encrypted, self._feed.sound)):  # codecs of sound decode it, to noise
            return Sound(fault="its sound is encrypted")
        return sound_of(stream, self._feed.sound, start_s, duration_s, self._config)

    def _begin_s(self, span: Span) -> Fraction:
        """Return the time at which a span begins."""
        return int(self._ticks[span.first]) * self._time_base

    def _start_s(self, span: Span) -> Fraction | None:
        """Return the time at which the sound of a span begins, or None when it is not known."""
        offset_s = 0.0 if self._clock is None else self._clock.offset_s(span.first)
        if offset_s is None:
            return None
        return self._begin_s(span) + Fraction(offset_s).limit_denominator(10**6)

    def _pts(self, time_s: Fraction) -> int:
        stream = self._stream
        return 0 if stream is None or not stream.time_base else int(time_s // stream.time_base)
