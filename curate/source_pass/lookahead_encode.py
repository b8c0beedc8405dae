"""Clips encoded while their source is scanned, so that most sources are decoded once.

Frames wait in a window until `reelweave.curate.source_pass.lookahead` predicts which clip they belong to. The
prediction is compared with the spans once the whole source is known. A clip that was predicted wrongly is cut
in a second pass, from the same frames to the same bytes.
"""

import tempfile
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import IO

import av
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.crop import BarMeter, Crop, PictureCropper
from reelweave.curate.cut.encode import ClipEncoder, codec_name
from reelweave.curate.cut.smart.ahead import SmartAhead
from reelweave.curate.cut.smart.builder import SmartClip
from reelweave.curate.cut.smart.check import SeamError
from reelweave.curate.cut.smart.plan import Plan
from reelweave.curate.frames.budget import most_bytes, most_frames, most_pixels
from reelweave.curate.frames.child_process import give_back
from reelweave.curate.frames.clocks.rates import is_fleeting, lower_rate, ties_s
from reelweave.curate.frames.frame_times import FrameTimes, likely_clip_rate
from reelweave.curate.frames.picture import Finisher, Geometry
from reelweave.curate.frames.probe import Probe
from reelweave.curate.shots.spans import Span
from reelweave.curate.source_pass.ahead_clip import AheadClip, shows
from reelweave.curate.source_pass.listed_lookahead import ListedLookahead
from reelweave.curate.source_pass.lookahead import TURN, Lookahead, decoded_bytes, finished_bytes
from reelweave.curate.source_pass.sampling import ClipPictures, PictureCollector

_GIVE_BACK_PIXELS = 2 * 10**8  # a hundred frames of 1080p
_MAX_SPOOL_BYTES = 1 << 35
_SAME_S = 1e-6  # between times of one frame that were computed in two ways


@dataclass(frozen=True)
class _Encoded:
    last: int
    rate: Fraction
    place: int  # in the spool: the clip, then the sample's pictures and its fingerprint
    clip_bytes: int
    collected: ClipPictures  # without pictures
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of pictures and fingerprint
    shown: NDArray[np.intp]  # number of frames of the clip for each frame of the source
    plan: Plan | None  # of a smart cut
    crop: Crop | None


class LookaheadEncoder:
    """Encoder of the clips of one source while it is scanned; made by `encode_ahead`.

    A clip of a source of variable rate is encoded at the rate of its frames so far. It gives up a source that has two
    fields per frame or no rising time stamps, or that changes its size.
    """

    def __init__(
        self,
        lookahead: Lookahead | ListedLookahead,
        pictures: Finisher,
        spool: IO[bytes],
        size: Geometry,
        header: Probe,
        time_base: Fraction,
        source_bytes: int,
        config: SourceStageConfig,
        begin_pts: int | None,
        smart: SmartAhead | None,
        bars: BarMeter | None,
    ) -> None:
        assert header.rate is not None
        self._lookahead, self._pictures, self._spool, self._size = lookahead, pictures, spool, size
        self._stated, self._time_base, self._config = header.rate, float(time_base), config
        self._rate = header.rate  # of the clip in work
        self._usual_s = 1 / float(header.rate)  # for which its footage shows a frame
        budget = config.cut.ahead_mb * 10**6
        self._finishes_first = (lookahead.lag + TURN) * decoded_bytes(header) > budget
        frame_bytes = finished_bytes(header, config) if self._finishes_first else decoded_bytes(header)
        self._most = int(budget / frame_bytes)
        self._counted = header.container == "avi"  # it stores no times: most frames lie on the grid
        self._collector = PictureCollector(header.codec, config.scores)
        self._window: deque[VideoFrame] = deque()
        self._times_s = array("d")
        self._begin_pts = begin_pts
        self._kind = (0, 0, "")
        self._passed = 0  # frames that left the window
        self._clip: int | None = None  # first frame of the clip in work
        self._encoder: ClipEncoder | SmartClip | None = None
        self._smart = smart
        self._bars, self._cropped = bars, PictureCropper()
        self._crop: Crop | None = None  # of the clip in work
        self._shown = array("L")  # of the clip in work, as of `_Encoded`
        self._slots = self._written = 0  # their sum, and frames of all clips
        self._most_pixels = most_pixels(source_bytes, config.probe)
        self._left_bytes = most_bytes(source_bytes, config.probe)  # of the clips to come
        self._encoded: dict[int, _Encoded] = {}
        self._timeline: FrameTimes | None = None
        self._pixels, self._given_up = 0, False  # encoded since memory was given back

    def push(self, frame: VideoFrame) -> None:
        """Take the next decoded frame, after the detector and the stitching samples took it."""
        if self._given_up:
            return
        kind = (frame.width, frame.height, frame.format.name)
        if not self._times_s:
            self._kind = kind
            if self._begin_pts is None:
                self._begin_pts = frame.pts or 0
        shown_s = self._shown_s(frame)
        # The window is measured by the first frame; a later one may be a thousand times as large.
        if shown_s is None or frame.interlaced_frame or kind != self._kind:
            self.close()
            return
        self._times_s.append(shown_s)
        try:
            self._window.append(self._pictures.finish(frame) if self._finishes_first else frame)
        except (av.error.FFmpegError, ValueError):
            self.close()  # the second pass says why
            return
        # Decoding and encoding by turns, many frames at a time, finds both in the processor's cache.
        while len(self._window) >= self._lookahead.lag + TURN:
            end = self._passed + TURN
            if len(self._window) < self._most and not self._lookahead.is_certain(end - 1, self._times_s):
                break
            while self._window and self._passed < end:
                self._step()

    def finish(self, timeline: FrameTimes) -> None:
        """Encode the rest, once source and detector have ended."""
        if self._given_up:
            return
        if timeline.deinterlace:
            self.close()
            return
        self._timeline = timeline
        self._times_s.append(timeline.times_s[-1])
        while self._window:
            self._step(ended=True)
        self._close(self._passed)

    def has_passed(self, frame: int) -> bool:
        """Return whether all clips that begin before a frame are encoded, or none will be."""
        return self._given_up or (self._passed >= frame and (self._clip is None or self._clip >= frame))

    def __contains__(self, span: object) -> bool:
        """Return whether exactly this span was encoded, frame for frame."""
        encoded = self._encoded.get(span.first) if isinstance(span, Span) else None
        if (
            encoded is None
            or not isinstance(span, Span)
            or encoded.last != span.last
            or self._timeline is None
        ):
            return False
        rate = self._timeline.clip_rate(span.first, span.last)
        if encoded.rate != rate or not shows(encoded.shown, span, self._timeline):
            return False
        if self._bars is not None and self._bars.crop(span.first, span.last, self._size) != encoded.crop:
            return False
        # Nothing is copied of what is cropped.
        smart = None if encoded.crop is not None else self._smart
        if smart is not None and not smart.agrees(encoded.plan, span, self._timeline):
            return False
        times_s = self._timeline.times_s
        true_s, taken_s = (np.asarray(times[span.first : span.last]) for times in (times_s, self._times_s))
        return bool(np.abs((true_s - true_s[0]) - (taken_s - taken_s[0])).max() < _SAME_S)

    def get(self, span: Span, /) -> bytes | None:
        """Return a span as an MP4 file of pictures only, index last, or None when it was not encoded."""
        if span not in self:
            return None
        encoded = self._encoded[span.first]
        self._spool.seek(encoded.place)
        return self._spool.read(encoded.clip_bytes)

    def take_pictures(self, span: Span) -> ClipPictures:
        """Return, once, the samples that were collected from a span that was encoded."""
        return self._read(self._encoded.pop(span.first))[1]

    def take_clips(self) -> Iterator[AheadClip]:
        """Return, once, every clip so far, for a source whose spans are known elsewhere."""
        for first, encoded in sorted(self._encoded.items()):
            data, collected = self._read(encoded)
            times_s = np.array(self._times_s[first : encoded.last + 1])
            rate, shown, plan = encoded.rate, encoded.shown, encoded.plan
            yield AheadClip(first, encoded.last, rate, data, collected, shown, times_s, plan, encoded.crop)
        self._encoded.clear()

    def _read(self, encoded: _Encoded) -> tuple[bytes, ClipPictures]:
        self._spool.seek(encoded.place)
        data = self._spool.read(encoded.clip_bytes)
        pictures, fingerprint = (
            np.frombuffer(self._spool.read(int(np.prod(shape))), np.uint8).reshape(shape)
            for shape in encoded.shapes
        )
        return data, replace(encoded.collected, pictures=pictures, fingerprint=fingerprint)

    def _shown_s(self, frame: VideoFrame) -> float | None:
        """Return seconds from the first frame to the next one, ``frame``; None where they do not rise."""
        if self._counted:
            return len(self._times_s) / float(self._stated)
        if frame.pts is None:
            return None
        shown_s = (frame.pts - (self._begin_pts or 0)) * self._time_base
        return shown_s if not self._times_s or shown_s > self._times_s[-1] else None

    def _step(self, ended: bool = False) -> None:
        frame_index, frame = self._passed, self._window.popleft()
        self._passed += 1
        clip = self._lookahead.clip_of(frame_index, self._times_s, ended=ended)
        if clip != self._clip:
            self._close(frame_index)
            self._clip = clip
            if clip == frame_index:
                self._open()
        if self._encoder is not None:
            self._show(frame, frame_index)
        if self._smart is not None and not self._smart.drop_packets(frame_index, self._encoder):
            self.close()

    def _open(self) -> None:
        assert self._clip is not None
        config, times_s = self._config.cut, np.array(self._times_s)
        if self._timeline is not None:
            times_s = times_s[:-1]
        last = self._lookahead.known_end or len(times_s)
        footage_rate = likely_clip_rate(times_s, self._clip, last, self._stated, config.max_fps)
        if self._timeline is not None and self._timeline.constant:
            footage_rate = self._timeline.rate
        rate = lower_rate(footage_rate, config.clip_fps)
        self._usual_s = 1 / float(footage_rate)
        self._rate, self._shown, self._slots = rate, array("L"), 0
        if self._bars is not None:
            self._crop = self._bars.crop(self._clip, last, self._size)
        size = self._size if self._crop is None else self._crop.size(self._size)
        try:
            if self._smart is not None and self._crop is None and rate == footage_rate:
                self._encoder = self._smart.begin(self._clip, rate, self._left_bytes)
            if self._encoder is None:
                codec = codec_name(config.encoder, size.bits)
                self._encoder = ClipEncoder(codec, size, rate, config, self._left_bytes)
        except CutError:
            self.close()  # the second pass says why

    def _show(self, frame: VideoFrame, frame_index: int) -> None:
        assert self._encoder is not None
        assert self._clip is not None
        first_s, rate = self._times_s[self._clip], float(self._rate)
        before, end_s = self._slots, self._times_s[frame_index + 1]
        held_s = end_s - self._times_s[frame_index]
        is_seen = not is_fleeting(held_s, self._usual_s)
        tie_s = float(ties_s(np.array(held_s), self._rate))
        # As `source_frames` does for a whole span, here without knowing its end.
        while is_seen and first_s + (self._slots + 0.5) / rate < end_s + (
            tie_s if self._slots == before else -tie_s
        ):
            self._slots += 1
            if not self._affords(self._slots):
                self.close()  # the second pass says why, or does without it
                return
        self._shown.append(self._slots - before)
        try:
            picture = frame if self._finishes_first else self._pictures.finish(frame)
            self._encoder.show(self._cropped(picture, self._crop), self._slots - before)
            if self._slots > before or is_seen:
                self._collector.push(self._times_s[frame_index] - first_s, held_s, frame, picture)
        except (CutError, av.error.FFmpegError, ValueError):
            self.close()

    def _affords(self, frames: int) -> bool:
        """Return whether the budget of the source holds another clip of so many frames."""
        frames += self._written
        pixels = frames * self._size.width * self._size.height
        return pixels <= self._most_pixels and frames <= most_frames(len(self._times_s), self._config.probe)

    def _close(self, last: int) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is None or self._clip is None:
            return
        if not self._slots:  # whether all its frames are too short to be seen, only the whole source tells
            encoder.abandon()
            self._collector.drop()
            return
        try:
            clip, collected = encoder.finish(), self._collector.take()
            self._written += self._slots
            self._left_bytes -= len(clip)
            offset = self._spool.seek(0, 2)
            if offset > _MAX_SPOOL_BYTES:
                self.close()
                return
            self._spool.write(clip)
            self._spool.write(collected.pictures.tobytes())
            self._spool.write(collected.fingerprint.tobytes())
        except SeamError:  # the second pass encodes it
            self._collector.drop()
            return
        except (CutError, OSError):  # a full disk costs nothing but time
            self.close()
            return
        shapes = collected.pictures.shape, collected.fingerprint.shape
        nothing = np.zeros((0, 1, 1), np.uint8)
        slim = replace(collected, pictures=nothing[..., None], fingerprint=nothing)
        shown = np.array(self._shown, np.intp)
        plan = encoder.plan if isinstance(encoder, SmartClip) else None
        self._encoded[self._clip] = _Encoded(
            last, self._rate, offset, len(clip), slim, shapes, shown, plan, self._crop
        )
        self._pixels += (last - self._clip) * self._size.width * self._size.height
        if self._pixels > _GIVE_BACK_PIXELS:
            self._pixels = 0
            give_back()

    def close(self) -> None:
        """Give up everything that has not been taken."""
        self._given_up = True
        self._window.clear()
        self._encoded.clear()
        if self._encoder is not None:
            self._encoder.abandon()
            self._encoder = None
        if self._smart is not None:
            self._smart.close()


@contextmanager
def encode_ahead(
    lookahead: Lookahead | ListedLookahead,
    size: Geometry,
    header: Probe,
    time_base: Fraction,
    source_bytes: int,
    config: SourceStageConfig,
    begin_pts: int | None = None,
    smart: SmartAhead | None = None,
    bars: BarMeter | None = None,
) -> Iterator[LookaheadEncoder]:
    """Return the encoder of a source's clips; it gives up when the context ends.

    Args:
        lookahead: Lookahead of the source, from `lookahead_of`.
        size: Size of finished pictures.
        header: Probe of the source.
        time_base: Seconds per tick of its time stamps.
        source_bytes: Size of the source, which limits the size of its clips.
        config: Configuration of the clips and their samples.
        begin_pts: Stamp from which times count; None for the first frame's.
        smart: Source of smart cuts, for ``cut.mode=smart``.
        bars: Bars of the source's frames, which clips lose; it takes each frame before the encoder does.
    """
    with tempfile.TemporaryFile(prefix="reelweave-ahead-") as spool:
        ahead = LookaheadEncoder(
            lookahead,
            Finisher(size),
            spool,
            size,
            header,
            time_base,
            source_bytes,
            config,
            begin_pts,
            smart,
            bars,
        )
        try:
            yield ahead
        finally:
            ahead.close()
