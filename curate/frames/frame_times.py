"""When each frame of a source is shown, and at which constant rate its clips shall run."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curate.frames.budget import check_pixels
from curate.frames.clock import JUMP_S, repaired
from curate.frames.interlace import deinterlaced
from curate.frames.probe import ProbeConfig, check_frame, check_size
from curate.frames.source import SourceError

STANDARD_RATES = tuple(
    Fraction(rate)
    for rate in ("24000/1001", "24", "25", "30000/1001", "30", "48", "50", "60000/1001", "60", "100", "120")
)
CONSTANT_TOLERANCE = 0.25  # of a frame; container ticks (1 ms in Matroska) move frames by less
_SNAP_TOLERANCE = 0.01  # relative distance at which a measured rate is a standard one
# Frames closer than this percentile show the camera's rate where a recorder dropped still frames.
_NOMINAL_GAP_PERCENTILE = 10


@dataclass(frozen=True)
class Damage:
    """Frames ``[first, last)``, in shown order, that could not be decoded cleanly, and why."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True)
class Timeline:
    """The shown frames of a source.

    Attributes:
        times_s: float64 [frames + 1]: when each frame appears, seconds after the first one; the last entry
            is when the last frame disappears.
        rate: frames per second for clips of this source.
        constant: True when every frame lies on the grid of ``rate``, so that clips take the frames one for one.
        damage: sorted, apart from each other.
        deinterlace: whether frames hold two fields of which clips shall show a full picture.
        shifts_s: float64 [frames + 1]: how much later ``times_s`` is than the source's own clock, where that was
            repaired; None: nowhere.
        breaks: frames at which the source's clock jumps or starts anew; no clip goes across one.
    """

    times_s: NDArray[np.float64]
    rate: Fraction
    constant: bool
    damage: tuple[Damage, ...]
    deinterlace: bool = False
    shifts_s: NDArray[np.float64] | None = None
    breaks: tuple[int, ...] = ()

    @property
    def frames(self) -> int:
        """Number of frames that decode."""
        return len(self.times_s) - 1


class Decoder:
    """Decodes a stream in shown order, going on after errors and remembering where they were.

    A frame that depends on a lost one looks wrong although it decodes; so damage lasts from the first
    frame that had not been shown when the error came until the next key frame.

    Args:
        container: opened.
        stream: of it.
        limits: that every frame must keep, whatever the header said; None for a source that was seen before.
        deinterlace: whether interlaced frames become full pictures; one frame comes out for each.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        limits: ProbeConfig | None = None,
        *,
        deinterlace: bool = False,
    ) -> None:
        self._container = container
        self._stream = stream
        self._limits = limits
        self._deinterlace = deinterlace
        self._shown = 0
        self._interlaced = 0
        self._errors = 0
        self._broken_since: int | None = None
        self._damage: list[Damage] = []

    def frames(self) -> Iterator[VideoFrame]:
        """Every frame that decodes, damaged ones too, so that numbers agree between passes.

        Raises:
            SourceError: a limit is broken.
        """
        decoded = self._decoded() if self._limits is None else self._limited(self._limits)
        return deinterlaced(decoded) if self._deinterlace else decoded

    @property
    def interlaced(self) -> bool:
        """Whether one of the frames so far was interlaced."""
        return self._interlaced > 0

    def _decoded(self) -> Iterator[VideoFrame]:
        for frames in self._packets():
            yield from frames

    def _limited(self, limits: ProbeConfig) -> Iterator[VideoFrame]:
        spent_s, began_s = 0.0, time.thread_time()
        lasting, shown = 0.0, None
        tick_s = float(self._stream.time_base or 0)
        seen: tuple[object, ...] = ()
        pixels, source_bytes = 0, self._container.size
        for frames in self._packets():
            spent_s += time.thread_time() - began_s
            if spent_s > limits.max_decode_s:
                raise SourceError(
                    f"takes more than probe.max_decode_s = {limits.max_decode_s:g} s to decode;"
                    f" {self._shown} frames came in that time"
                )
            for frame in frames:
                kind = (frame.width, frame.height, frame.color_trc, frame.interlaced_frame)
                if kind != seen:
                    check_frame(frame, limits)
                    seen = kind
                pixels += frame.width * frame.height
                check_pixels(pixels, source_bytes, limits)
                if self._shown > limits.max_frames:
                    raise SourceError(f"has more than probe.max_frames = {limits.max_frames} frames")
                if frame.pts is not None:
                    gap_s = 0.0 if shown is None else (frame.pts - shown) * tick_s
                    # Jumps of the clock may be repaired; what is left of them is looked at when all is known.
                    lasting += gap_s if 0 < gap_s <= JUMP_S else 0.0
                    shown = frame.pts
                    if lasting > limits.max_duration_s:
                        raise too_long(limits)
                yield frame
            began_s = time.thread_time()

    def _packets(self) -> Iterator[list[VideoFrame]]:
        """The frames that each packet lets out."""
        try:
            for packet in self._container.demux(self._stream):
                try:
                    decoded = packet.decode()
                except av.error.FFmpegError:
                    if self._limits is not None:
                        # A decoder refuses a picture too large for memory with an error like any other.
                        context = self._stream.codec_context
                        check_size(context.width, context.height, self._limits)
                    self._break()
                    continue
                for frame in decoded:
                    if frame.key_frame and not frame.is_corrupt:
                        self._mend()
                    elif frame.is_corrupt:
                        self._break()
                    self._interlaced += frame.interlaced_frame
                    self._shown += 1
                yield decoded
        except (av.error.FFmpegError, OSError):
            self._break()

    def damage(self) -> tuple[Damage, ...]:
        """Damage seen so far; complete after ``frames`` is exhausted."""
        self._mend()
        return tuple(self._damage)

    def _break(self) -> None:
        self._errors += 1
        if self._broken_since is None:
            self._broken_since = self._shown

    def _mend(self) -> None:
        if self._broken_since is not None:
            what = "packet" if self._errors == 1 else "packets"
            reason = f"{self._errors} damaged {what}; frames that depend on them are unsafe"
            self._damage.append(Damage(self._broken_since, self._shown, reason))
            self._broken_since, self._errors = None, 0


def too_long(limits: ProbeConfig) -> SourceError:
    """The fault of a source that shows frames for longer than it may."""
    return SourceError(f"lasts more than probe.max_duration_s = {limits.max_duration_s:.0f}")


def timeline(
    pts: list[int | None],
    time_base: Fraction,
    last_duration: int | None,
    stated_rate: Fraction | None,
    damage: tuple[Damage, ...],
    max_fps: float,
    deinterlace: bool = False,
    durations: Sequence[int] | None = None,
) -> Timeline:
    """The timeline of frames in shown order.

    Args:
        pts: presentation time of each frame in ticks, as the decoder gave it. What does not rise is repaired around
            the place; where most is missing or disordered (AVI stores no presentation times), the frames lie on
            the grid of the stated rate.
        time_base: seconds per tick.
        last_duration: of the last frame in ticks, when known.
        stated_rate: of the container, frames per second.
        damage: as the decoder saw it.
        max_fps: upper limit of the rate chosen for sources of variable frame rate.
        deinterlace: as of `Timeline`.
        durations: of every frame in ticks, 0 where not known.
    """
    clock = repaired(pts, float(time_base), durations)
    if clock is None:
        rate = stated_rate or Fraction(25)
        return Timeline(np.arange(len(pts) + 1) / float(rate), rate, True, damage, deinterlace)
    times_s = (clock.ticks - clock.ticks[0]) * float(time_base)
    gaps_s = _clean_gaps_s(times_s, damage)
    rate, constant = _choose_rate(times_s, gaps_s, stated_rate, damage, max_fps)
    last_s = 1 / float(rate)
    if not constant and last_duration:
        last_s = float(last_duration * time_base)
    times_s = np.append(times_s, times_s[-1] + last_s)
    if not clock.shifts.any():
        return Timeline(times_s, rate, constant, damage, deinterlace)
    shifts_s = np.append(clock.shifts, clock.shifts[-1]) * float(time_base)
    return Timeline(times_s, rate, constant, damage, deinterlace, shifts_s, clock.breaks)


def likely_rate(times_s: NDArray[np.float64], stated: Fraction | None, max_fps: float) -> Fraction:
    """The rate of the timeline of frames of which only the first ones are known, if the others go on like them.

    Args:
        times_s: float64 [frames], rising.
        stated: as of `timeline`.
        max_fps: as of `timeline`.
    """
    return _choose_rate(times_s, np.diff(times_s), stated, (), max_fps)[0]


def clean_runs(frames: int, damage: tuple[Damage, ...]) -> list[tuple[int, int]]:
    """Runs ``[first, last)`` of frames outside all damage."""
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


def _choose_rate(
    times_s: NDArray[np.float64],
    gaps_s: NDArray[np.float64],
    stated: Fraction | None,
    damage: tuple[Damage, ...],
    max_fps: float,
) -> tuple[Fraction, bool]:
    if not len(gaps_s):
        return stated or Fraction(25), True
    measured = Fraction(1 / float(np.mean(gaps_s))).limit_denominator(1001)
    for rate in (stated, _snapped(measured), measured):
        if rate is not None and _lies_on_grid(times_s, rate, damage):
            return rate, True
    nominal = 1 / float(np.percentile(gaps_s, _NOMINAL_GAP_PERCENTILE))
    limited = Fraction(min(nominal, max_fps)).limit_denominator(1001)
    return _snapped(limited), False


def _snapped(rate: Fraction) -> Fraction:
    nearest = min(STANDARD_RATES, key=lambda standard: abs(standard - rate))
    return nearest if abs(nearest - rate) <= _SNAP_TOLERANCE * rate else rate


def _lies_on_grid(times_s: NDArray[np.float64], rate: Fraction, damage: tuple[Damage, ...]) -> bool:
    for first, last in clean_runs(len(times_s), damage):
        ideal = np.arange(last - first) / float(rate)
        if np.max(np.abs(times_s[first:last] - times_s[first] - ideal)) > CONSTANT_TOLERANCE / float(rate):
            return False
    return True


def source_frames(times_s: NDArray[np.float64], first: int, last: int, rate: Fraction) -> NDArray[np.int64]:
    """Which source frame a constant-rate clip of frames ``[first, last)`` shows in each of its slots.

    A slot shows the frame that is on screen in its middle. Where the source lies on the grid of ``rate``
    within half a frame this is the identity.

    Args:
        times_s: as in ``Timeline``.
        first: first source frame of the span.
        last: one past the last source frame.
        rate: of the clip, frames per second.

    Returns:
        int64 [slots], non-decreasing, in ``[first, last)``; slots / rate is the span's duration within half a
        frame, and there is at least one slot.
    """
    duration_s = times_s[last] - times_s[first]
    slots = max(1, round(duration_s * float(rate)))
    middles_s = times_s[first] + (np.arange(slots) + 0.5) / float(rate)
    shown: NDArray[np.int64] = np.searchsorted(times_s[first:last], middles_s, side="right") - 1 + first
    return np.clip(shown, first, last - 1)
