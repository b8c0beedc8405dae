"""Display time of each frame of a source, and the constant frame rate of its clips."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.codec.context import CodecContext
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.frames.budget import check_pixels
from reelweave.curate.frames.clocks.clock import JUMP_S, repaired
from reelweave.curate.frames.clocks.rates import (
    STANDARD_RATES,
    TIE_S,
    choose_clip_rate,
    choose_rate,
    fleeting,
    snapped,
)
from reelweave.curate.frames.container.dolby_vision import without_base
from reelweave.curate.frames.container.encryption import EncryptedError, is_encrypted
from reelweave.curate.frames.container.side_data import Cropper
from reelweave.curate.frames.interlace import FieldOrder, deinterlaced
from reelweave.curate.frames.lost_frames import LostFrames
from reelweave.curate.frames.picture import Shape, ShapeMeter
from reelweave.curate.frames.probe import ProbeConfig, check_frame, check_size
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.colour.transparency import OverBlack
from reelweave.loader.errors import refuse_shortage

_SEVERAL_TICKS = 1.5
"""Frames of the stated rate, in the usual distance of stamps, above which that rate is the one of ticks."""
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
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
class FrameTimes:
    """Display times of a source's frames.

    Attributes:
        times_s: float64 [frames + 1]: start of each frame, seconds after the first one; the last entry is the
            end of the last frame.
        rate: Frames per second of the source.
        constant: True when every frame lies on the grid of ``rate``, so that clips take the frames one for
            one. Else each clip has a rate of its own.
        damage: Damaged runs of frames, sorted and disjoint.
        deinterlace: True when frames are interlaced and clips show deinterlaced pictures.
        shifts_s: float64 [frames + 1]: ``times_s`` minus the source's own clock, where that was repaired;
            None: nowhere.
        breaks: Frames at which the source's clock jumps or restarts; no clip crosses one.
        pulldown: Order of fields of a telecined film; its frames of repeated fields last an instant.
        max_fps: Upper limit of the rate of clips where the source's is not constant.
        unmarked: Order of fields of frames that are interlaced without a mark.
        shapes: Shapes of the pictures, if they change; no clip holds two.
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

    @property
    def frames(self) -> int:
        """Number of frames that decode."""
        return len(self.times_s) - 1

    def clip_rate(self, first: int, last: int) -> Fraction:
        """Return the frames per second of a clip of frames ``[first, last)``."""
        if self.constant or self.pulldown is not None:
            return self.rate
        return choose_clip_rate(self.times_s[first:last], self.rate, self.max_fps)

    def clip_frames(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the source frame for each frame of a clip of frames ``[first, last)``; see `source_frames`."""
        return source_frames(self.times_s, first, last, self.clip_rate(first, last))


class Decoder:
    """Decoder of one stream in display order that continues after errors and records the damage.

    A frame that depends on a lost one looks wrong although it decodes. So damage extends from the first frame
    not yet shown at the time of the error to the next key frame.

    Args:
        container: Opened container.
        stream: Video stream of the container.
        limits: Limits that every frame is checked against, whatever the header said; None for a source
            checked before.
        deinterlace: True to deinterlace, one picture per frame.
        pulldown: Order of fields of a telecined film, whose fields are matched.
        unmarked: Order of fields of frames that are interlaced without a mark.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        limits: ProbeConfig | None = None,
        *,
        deinterlace: bool = False,
        pulldown: FieldOrder | None = None,
        unmarked: FieldOrder | None = None,
    ) -> None:
        self._container = container
        self._stream = stream
        self._limits = limits
        self._deinterlace, self._pulldown, self._unmarked = deinterlace, pulldown, unmarked
        self._shown = 0
        self._interlaced = 0
        self._errors = 0
        self._broken_since: int | None = None
        self._damage: list[Damage] = []
        self._lost = LostFrames(stream)
        self._over_black = OverBlack()
        # Raw pictures of 32 bits in AVI and elsewhere mostly leave the last eight unused.
        self._shows_alpha = stream.codec_context.name != "rawvideo"
        self._codec = _codec_with_alpha(stream)
        self._crop = Cropper(stream)
        self._meter = None if limits is None else ShapeMeter(stream, self._codec, limits, self._crop)

    def frames(self) -> Iterator[VideoFrame]:
        """Yield every frame that decodes, damaged ones too, so that frame numbers agree between passes.

        Raises:
            SourceError: A limit is broken.
            EncryptedError: A packet is encrypted; `open_video` puts it into words.
        """
        decoded = self._decoded() if self._limits is None else self._limited(self._limits)
        return deinterlaced(decoded, self._pulldown, self._unmarked) if self._deinterlace else decoded

    @property
    def interlaced(self) -> bool:
        """True when one of the frames so far was interlaced."""
        return self._interlaced > 0

    @property
    def transparent(self) -> bool:
        """True when one of the frames so far had transparent pixels; they are shown over black."""
        return self._over_black.seen

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the frames so far, where limits were given."""
        return () if self._meter is None else tuple(self._meter.shapes)

    def _decoded(self) -> Iterator[VideoFrame]:
        for frames in self._packets():
            yield from frames

    def _limited(self, limits: ProbeConfig) -> Iterator[VideoFrame]:
        spent_s, began_s = 0.0, time.thread_time()
        lasting, shown = 0.0, None
        tick_s = float(self._stream.time_base or 0)
        last_kind: tuple[object, ...] = ()
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
                if kind != last_kind:
                    check_frame(frame, limits)
                    last_kind = kind
                pixels += frame.width * frame.height
                check_pixels(pixels, source_bytes, limits)
                if self._shown > limits.max_frames:
                    raise SourceError(f"has more than probe.max_frames = {limits.max_frames} frames")
                if frame.pts is not None:
                    gap_s = 0.0 if shown is None else (frame.pts - shown) * tick_s
                    # Jumps of the clock may be repaired later; the caller checks the repaired duration.
                    lasting += gap_s if 0 < gap_s <= JUMP_S else 0.0
                    shown = frame.pts
                    if lasting > limits.max_duration_s:
                        raise too_long(limits)
                yield frame
            began_s = time.thread_time()

    def _packets(self) -> Iterator[list[VideoFrame]]:
        """Yield the frames that each packet releases."""
        try:
            for packet in self._container.demux(self._stream):
                if is_encrypted(packet):  # some codecs decode it, to noise
                    raise EncryptedError
                if not self._shown and self._limits is not None and (fault := without_base(packet)):
                    raise SourceError(fault)
                self._lost.expect(packet)
                try:
                    if self._meter is not None:
                        decoded = self._meter.decode(packet)
                    else:
                        decoded = [self._crop(frame) for frame in self._codec.decode(packet)]
                    if self._shows_alpha:
                        decoded = [self._over_black(frame) for frame in decoded]
                except av.error.FFmpegError as error:
                    refuse_shortage(error, "decode a picture")
                    if self._limits is not None:
                        # A picture too large for memory raises the same error as damage.
                        context = self._stream.codec_context
                        check_size(context.width, context.height, self._limits)
                    self._break()
                    self._lost.fail()
                    continue
                for frame in decoded:
                    if self._lost.before(frame) and self._shown:
                        self._break_before()
                    if frame.key_frame and not frame.is_corrupt:
                        self._mend()
                    elif frame.is_corrupt:
                        self._break()
                    self._interlaced += frame.interlaced_frame
                    self._shown += 1
                yield decoded
        except (av.error.FFmpegError, OSError) as error:
            refuse_shortage(error)
            self._break()
        if self._shown and self._lost.at_end():
            self._break_before()

    def damage(self) -> tuple[Damage, ...]:
        """Return the damage so far; complete after ``frames`` is exhausted."""
        self._mend()
        return tuple(self._damage)

    def _break(self) -> None:
        self._errors += 1
        if self._broken_since is None:
            self._broken_since = self._shown

    def _break_before(self) -> None:
        """Note lost frames, in whose time the frame before them would be shown on."""
        self._errors += self._broken_since is None
        before = self._shown - 1
        self._broken_since = before if self._broken_since is None else min(before, self._broken_since)

    def _mend(self) -> None:
        if self._broken_since is not None:
            what = "packet" if self._errors == 1 else "packets"
            reason = f"{self._errors} damaged {what}; frames that depend on them are unsafe"
            self._damage.append(Damage(self._broken_since, self._shown, reason))
            self._broken_since, self._errors = None, 0


def _codec_with_alpha(stream: VideoStream) -> VideoCodecContext:
    """Return the decoder of a stream; FFmpeg's own for VP8 and VP9 leave out the alpha in packets of WebM."""
    default_codec = stream.codec_context
    other = _WITH_ALPHA.get(default_codec.codec.canonical_name)
    if other is None or not has_alpha_packets(stream):
        return default_codec
    codec = cast(VideoCodecContext, CodecContext.create(other, "r"))
    codec.extradata, codec.options = default_codec.extradata, default_codec.options
    codec.thread_count, codec.thread_type = default_codec.thread_count, default_codec.thread_type
    return codec


def has_alpha_packets(stream: VideoStream) -> bool:
    """Return whether packets of a stream hold an alpha channel beside the picture (WebM)."""
    return stream.metadata.get("alpha_mode") == "1"


def too_long(limits: ProbeConfig) -> SourceError:
    """Return the error for a source that lasts too long."""
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
) -> FrameTimes:
    """Return the timeline of frames in display order.

    Args:
        pts: Presentation stamp of each frame in ticks, from the decoder. Stamps that do not rise are repaired
            locally. Where most are missing or disordered (AVI stores none), frames lie on a grid. Its step
            is that of the stated rate, or the usual distance of the stamps if larger.
        time_base: Seconds per tick.
        last_duration: Duration of the last frame in ticks, when known.
        stated_rate: Frame rate in the container, frames per second.
        damage: Damage recorded by the decoder.
        max_fps: Upper limit of the rate of clips from sources with variable frame rate.
        deinterlace: Value for `FrameTimes.deinterlace`.
        durations: Duration of every frame in ticks, 0 where unknown.
    """
    clock = repaired(pts, float(time_base), durations)
    if clock is None:
        rate = _counted_rate(pts, time_base, stated_rate)
        return FrameTimes(np.arange(len(pts) + 1) / float(rate), rate, True, damage, deinterlace)
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
    if not constant and last_duration:
        last_s = float(last_duration * time_base)
    elif not constant:
        last_s = 1 / float(choose_clip_rate(times_s[-_LAST_FRAMES:], rate, math.inf))
    line = FrameTimes(
        np.append(times_s, times_s[-1] + last_s), rate, constant, damage, deinterlace, max_fps=max_fps
    )
    if not clock.shifts.any():
        return line
    shifts_s = np.append(clock.shifts, clock.shifts[-1]) * float(time_base)
    return replace(line, shifts_s=shifts_s, breaks=clock.breaks)


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
    measured = snapped(Fraction(1 / float(gaps.mean() * time_base)).limit_denominator(1001))
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
    that no slot shows yet: frames half a frame off the grid would else be repeated and left out by turns. Frames too
    short to be seen are left out.

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
    shown: NDArray[np.int64] = np.searchsorted(ends_s, middles_s - TIE_S, side="right")
    latest = np.searchsorted(ends_s, middles_s + TIE_S, side="right")
    if not np.array_equal(shown, latest):
        at, chosen = -1, []
        for earliest, last in zip(shown.tolist(), latest.tolist(), strict=True):
            at = min(max(at + 1, earliest), last)
            chosen.append(at)
        shown = np.array(chosen, np.int64)
    return visible[np.minimum(shown, len(visible) - 1)]
