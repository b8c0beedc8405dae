"""Times and faults of a source's frames, as one decode or the parts of one saw them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.frames.clocks.sound_stamps import (
    SoundStamps,
    heard_until_s,
    lacking_sound,
    uneven_end,
)
from reelweave.curate.frames.frame_times import Damage, FrameTimes, Undecoded, timeline
from reelweave.curate.frames.interlace import FieldOrder
from reelweave.curate.frames.picture import Shape
from reelweave.curate.frames.probe import Probe, too_long
from reelweave.curate.frames.sound_clock import SoundClock, repaired_sound
from reelweave.curate.frames.telecine import Pulldown, invert_pulldown
from reelweave.curate.shots.spans import MISSING_MIN_S


@dataclass(frozen=True)
class Decoded:
    """Times and faults of all frames of a source, in display order.

    Attributes:
        probe: Header of the source.
        pts: Stamp of each frame in ticks.
        durations: Duration of each frame in ticks, 0 where unknown.
        time_base: Seconds per tick.
        start_time: Start of the stream in ticks, by its header.
        damage: Damaged runs of frames.
        interlaced: True if a frame is marked as interlaced.
        unmarked: Order of fields of a film that is interlaced without a mark.
        pulldown: Pulldown of a telecined film.
        sound: Stamps of the sound.
        shapes: Shapes of the pictures.
        coded: Times of coding of the packets in ticks, where frames may have none of their own.
        undecoded: Function that returns the packets behind the last frame, given the stamp of its end.
        repeated: Stamps of packets that come a second time, with the same bytes.
    """

    probe: Probe
    pts: list[int | None]
    durations: Sequence[int]
    time_base: Fraction
    start_time: int | None
    damage: tuple[Damage, ...]
    interlaced: bool
    unmarked: FieldOrder | None
    pulldown: Pulldown | None
    sound: SoundStamps
    shapes: tuple[Shape, ...] = ()
    coded: Sequence[int] = ()
    undecoded: Callable[[float], Undecoded | None] | None = None
    repeated: Collection[int] = ()

    def timeline(self, config: SourceStageConfig) -> FrameTimes:
        """Return the timeline of the source.

        Raises:
            SourceError: it lasts too long.
        """
        limits = config.probe
        deinterlaces = limits.interlaced == "deinterlace"
        unmarked = None if self.interlaced or not deinterlaces else self.unmarked
        line = timeline(
            self.pts,
            self.time_base,
            self.durations[-1] or None,
            self.probe.rate,
            self.damage,
            config.cut.max_fps,
            deinterlace=deinterlaces and (self.interlaced or unmarked is not None),
            durations=self.durations,
            promised_s=self.probe.promised_s,
            coded=self.coded,
            repeated=self.repeated,
        )
        line = replace(
            line,
            unmarked=unmarked,
            shapes=self.shapes if len(self.shapes) > 1 else (),
            undecoded=self._undecoded(line),
            fps=config.cut.clip_fps,
        )
        # What is missing at the begin leaves the cadence behind it as it is.
        is_clean = not any(hurt.first for hurt in line.damage)
        if self.pulldown is not None and line.constant and line.shifts_s is None and is_clean:
            line = invert_pulldown(line, self.pulldown)
        if line.times_s[-1] > limits.max_duration_s:
            raise too_long(limits)
        return line

    def _undecoded(self, line: FrameTimes) -> Undecoded | None:
        # Behind a break of the clock its first stamp tells no time.
        since = -1 if line.breaks else 0
        begin_pts = self.pts[since]
        if self.undecoded is None or begin_pts is None:
            return None
        return self.undecoded(
            begin_pts + float(line.times_s[-1] - line.times_s[:-1][since]) / float(self.time_base)
        )

    def promised_s(self, line: FrameTimes) -> float | None:
        """Return the promised duration; that of an init segment and later segments counts from before the first one.

        One of all streams may promise sound alone.
        """
        promised_s, end_s = self.probe.promised_s, float(line.times_s[-1])
        if promised_s is not None and self._promises_all_streams():
            heard_s = heard_until_s(self.sound, self._begin_s(line))
            if heard_s > max(end_s, promised_s - MISSING_MIN_S):
                return end_s
        begin_s = float((self.pts[0] or 0) * self.time_base)
        if (
            promised_s is None
            or begin_s <= MISSING_MIN_S
            or abs(begin_s + end_s - promised_s) > MISSING_MIN_S
        ):
            return promised_s
        return end_s

    def _promises_all_streams(self) -> bool:
        """Return whether the promised duration may be of another stream, by the container or by FFmpeg."""
        match self.probe.container:
            case "asf" | "flv":
                return True
            case "matroska,webm":
                return "duration" not in self.probe.metadata
            case "mpegts" | "mpeg":  # of more pictures, their stamps promise the last one
                return len(self.pts) == 1
        return False

    def sound_clock(self, line: FrameTimes) -> SoundClock | None:
        """Return the repaired clock of the sound, or None where its stamps are right."""
        return repaired_sound(self.sound, line, self._begin_s(line))

    def uneven_sound(self, line: FrameTimes) -> str:
        """Return words for sound that ends before or behind its pictures, or behind a repaired clock lasts shorter."""
        if not self.sound.tick_s or line.undecoded is not None:
            return ""
        if line.shifts_s is not None:
            gaps_s = np.diff(line.times_s)
            return lacking_sound(self.sound, float(np.minimum(gaps_s, 2 * np.median(gaps_s)).sum()))
        return uneven_end(self.sound, float(line.times_s[-1]), self._begin_s(line))

    def _begin_s(self, line: FrameTimes) -> float:
        # AVI stores times of coding, and empty slots before the first picture, which FFmpeg's start leaves out.
        stamped = self.pts[0] is not None and self.probe.container != "avi"
        start = self.start_time if line.begin is None else line.begin
        return float(((self.pts[0] if stamped else start) or 0) * self.time_base)
