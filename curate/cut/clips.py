"""One pass over a source that yields its wanted spans as clips."""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import BinaryIO, cast

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.cut import encode
from reelweave.curate.cut.audio import Sound, damaged_sound
from reelweave.curate.cut.clip import CodecMode, CutClip, CutError, EncodedSpans, FailedClip, Observe
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.copy import PacketInfo, copy, copyable, format_of, packet_infos
from reelweave.curate.cut.crop import BarMeter, Crop, PictureCropper
from reelweave.curate.cut.feed import Feed
from reelweave.curate.cut.mp4 import fast_start, merge
from reelweave.curate.cut.smart.builder import SmartClip
from reelweave.curate.cut.smart.check import SeamError
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.smart.plan import Plan
from reelweave.curate.cut.span_sound import SpanSound
from reelweave.curate.cut.verify import DamagedSoundError, verify
from reelweave.curate.frames.container.stream_choice import SoundChoice, choose_sound
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.decode_entry import Entry, EntryError, enter
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Finisher, Geometry, size_at
from reelweave.curate.frames.sound_clock import SoundClock
from reelweave.curate.frames.source import open_video
from reelweave.curate.shots.spans import Span
from reelweave.loader.dataset.samples.copied_frames import CopiedFrames
from reelweave.loader.errors import refuse_shortage

UNVERIFIED = "its smart cut did not verify"
_CROPPED = "its bars are cropped"


def cut(
    file: BinaryIO,
    timeline: FrameTimes,
    spans: list[Span],
    size: Geometry,
    config: CutConfig,
    observe: Observe | None = None,
    encoded: EncodedSpans = MappingProxyType({}),
    max_bytes: float = math.inf,
    sound_clock: SoundClock | None = None,
    entry: Entry | None = None,
    smart: SmartPackets | None = None,
    bars: BarMeter | None = None,
) -> Iterator[CutClip | FailedClip]:
    """Read the source once and yield every wanted span, in order, as a clip or as failed.

    Only frames of one clip's encoder are in memory. The frames of a span are found by their number in display
    order, which every decoding reproduces. So neither seeking nor time stamps can shift a cut. A clip that
    fails does not affect its neighbours, and broken sound does not fail its clip.

    Args:
        file: Source, opened for reading.
        timeline: Timeline of the same source.
        spans: Sorted, disjoint spans.
        size: Size of finished pictures, of the first frame where the timeline says that it changes.
        config: Clip settings.
        observe: Callback for every decoded frame of the spans, after it was encoded, with the codec's motion
            vectors where exported. All calls for a span precede its clip.
        encoded: Spans that are already encoded; they are not observed.
        max_bytes: Maximum size of all clips together; later clips fail.
        sound_clock: Repaired clock of the source's sound, or None where its stamps are right.
        entry: Place before the first span where reading begins, or None for the start of the file. It lies early
            enough for the sound of that span.
        smart: Notes on the source's packets for ``cut.mode=smart``, else None.
        bars: Bars of the source's frames, which clips lose; None to keep them.

    Raises:
        EntryError: Decoding cannot begin there.
    """
    if not spans:
        return
    file.seek(0)
    with open_video(file, motion_vectors=observe is not None) as (container, stream):
        # Which packets each span copies, before the source is read once more.
        plans: dict[Span, Plan] = {}
        if smart is not None:
            plans = {span: smart.plan(span, timeline, size) for span in spans if span not in encoded}
        source = _Pass(
            file, container, stream, timeline, size, config, observe, sound_clock, entry, smart, plans, bars
        )
        # Spans that are encoded already need no frames: behind the last other one, decoding stops.
        left_bytes = max_bytes
        remaining = sum(span not in encoded for span in spans)
        for span in spans:
            if remaining == 0:
                source.stop_decoding()
            remaining -= span not in encoded
            try:
                if left_bytes < 0:
                    raise CutError(encode.TOO_LARGE)
                try:
                    # A seam that does not verify costs one clip a decode of its own, not the pass.
                    clip = source.clip(span, encoded.get(span), left_bytes)
                except SeamError as error:
                    clip = _encode_whole(file, timeline, span, size, config, left_bytes, sound_clock, entry)
                    clip = replace(clip, remark=f"encoded: {UNVERIFIED}: {error}")
                left_bytes -= len(clip.data)
                if left_bytes < 0:
                    raise CutError(encode.TOO_LARGE)
            except CutError as error:
                # What comes behind a clip that filled the budget fails, too.
                if str(error) == encode.TOO_LARGE:
                    left_bytes = -1
                yield FailedClip(span, str(error))
            else:
                yield clip


def _encode_whole(
    file: BinaryIO,
    timeline: FrameTimes,
    span: Span,
    size: Geometry,
    config: CutConfig,
    max_bytes: float,
    sound_clock: SoundClock | None,
    entry: Entry | None,
) -> CutClip:
    """Return the clip of a span whose smart cut did not verify, from a pass of its own over the source.

    Raises:
        CutError: The span gives no clip.
    """
    where = file.tell()  # the other pass reads on there
    (clip,) = cut(
        file, timeline, [span], size, config, max_bytes=max_bytes, sound_clock=sound_clock, entry=entry
    )
    file.seek(where)
    if isinstance(clip, FailedClip):
        raise CutError(clip.reason)
    return clip


class _Pass:
    """State of one pass: position in the frames, and packets read ahead."""

    def __init__(
        self,
        file: BinaryIO,
        container: InputContainer,
        stream: VideoStream,
        timeline: FrameTimes,
        size: Geometry,
        config: CutConfig,
        observe: Observe | None,
        sound_clock: SoundClock | None,
        entry: Entry | None,
        smart: SmartPackets | None,
        plans: Mapping[Span, Plan],
        bars: BarMeter | None,
    ) -> None:
        self._smart, self._plans = smart, plans
        self._bars, self._cropped = bars, PictureCropper()
        self._crop: Crop | None = None  # of the clip in work
        self._time_base = stream.time_base or Fraction(1, 1000)
        entered = None
        if entry is not None:
            entered = enter(container, stream, entry.begin_pts + int(entry.near_s / self._time_base))
        self._stream, self._timeline, self._config, self._observe = stream, timeline, config, observe
        self._first_size = self._size = size
        self._pictures = Finisher(size)
        choice = choose_sound(container, stream, file) if config.audio == "keep" else SoundChoice()
        # Stamps that do not rise allow no copying.
        keep_video = config.mode in ("copy", "auto") and timeline.shifts_s is None
        self._feed = Feed(container, stream, choice.stream, keep_video=keep_video, sound_clock=sound_clock)
        if runs := [run for plan in plans.values() for run in plan.runs()]:
            self._feed.want(runs, 0 if entered is None else self._packet_of(entered, entry))
        # A decoder uses nothing of a container but its packets.
        decoder = Decoder(
            cast(InputContainer, self._feed),
            stream,
            deinterlace=timeline.deinterlace,
            pulldown=timeline.pulldown,
            unmarked=timeline.unmarked,
            is_begin=entry is None,
        )
        frames = decoder.frames()
        first = next(frames, None)
        self._frames = itertools.chain([] if first is None else [first], frames)
        # AVI stores times of coding instead of display times.
        stamped = first is not None and first.pts is not None and container.format.name != "avi"
        self._form = format_of(stream, first) if first is not None and stamped else None
        start = stream.start_time if timeline.begin is None else timeline.begin
        begin = first.pts if first is not None and stamped else start
        begin = begin if entry is None else entry.begin_pts
        self._ticks = self._ticks_from(begin or 0)
        self._sound = SpanSound(
            self._feed, choice, timeline, self._ticks, self._time_base, sound_clock, config
        )
        self._number = 0
        if entered is not None:
            self._number = int(np.searchsorted(self._ticks, entered))
            if first is None or first.pts != entered or int(self._ticks[self._number]) != entered:
                raise EntryError("its frames decode otherwise from a key frame on")
        self._decodes = config.mode != "copy" or observe is not None
        if not self._decodes:
            self.stop_decoding()

    def _ticks_from(self, begin: int) -> NDArray[np.int64]:
        """Return the stamp of each frame, and the end of the last one, where the first one has this stamp."""
        return np.rint(self._timeline.times_s / float(self._time_base)).astype(np.int64) + begin

    def _packet_of(self, entered: int, entry: Entry | None) -> int:
        """Return the number of the packet at which reading begins, as `SmartPackets` counts."""
        assert self._smart is not None
        number = int(np.searchsorted(self._ticks_from(0 if entry is None else entry.begin_pts), entered))
        if number >= self._timeline.frames or (packet := self._smart.position_of(number)) < 0:
            raise EntryError("the packet of one of its key frames is not known")
        return packet

    def stop_decoding(self) -> None:
        """End decoding when no later span needs it."""
        self._feed.stop_decoding()
        self._decodes = False

    def clip(self, span: Span, encoded: bytes | None, max_bytes: float) -> CutClip:
        """Return the clip of the next span, from its encoded pictures where given.

        Raises:
            CutError: The span gives no clip.
        """
        size = size_at(self._timeline.shapes, span.first, self._first_size, self._config.max_bits)
        if size != self._size:
            self._size, self._pictures = size, Finisher(size)
        self._crop = None if self._bars is None else self._bars.crop(span.first, span.last, size)
        self._feed.keep_from(int(self._ticks[span.first]), self._sound.keep_from_pts(span))
        picture = encoded or self._copy_packets(span)
        mode: CodecMode = "copy" if picture and not encoded else "encode"
        frames = sum(self._times_shown(span)) if encoded else span.last - span.first
        if encoded and self._decodes:
            deque(self._frames_of(span), maxlen=0)  # a later span needs decoding
        if picture is None:
            frames, picture = self._encode_span(span, max_bytes)
        rate = self._timeline.clip_rate(span.first, span.last)
        clip = self._assemble_clip(span, mode, picture, frames, rate, self._sound.of(span, frames / rate))
        if self._config.mode == "encode":
            return clip
        if self._smart is None:
            return replace(clip, copied_frames=CopiedFrames.of_whole(frames, copied=mode == "copy"))
        if self._crop is not None:
            copied = CopiedFrames.of_whole(frames, copied=False)
            return replace(clip, remark=f"encoded: {_CROPPED}", copied_frames=copied)
        plan = self._plans.get(span) or self._smart.plan(span, self._timeline, self._first_size)
        copied = plan.copied_frames(self._times_shown(span))
        return replace(clip, codec_mode=plan.mode, remark=plan.describe(frames), copied_frames=copied)

    def _copy_packets(self, span: Span) -> bytes | None:
        """Return the span's own packets, or None when it needs encoding."""
        config, feed = self._config, self._feed
        if config.mode in ("encode", "smart"):
            return None
        # Why the packets do not fit as they are, if so.
        fault: str | None = "its container stores no times of showing"
        units: list[PacketInfo] = []
        if self._crop is not None:
            fault = _CROPPED
        elif self._timeline.shifts_s is not None:
            fault = "its time stamps do not rise"
        elif self._form is not None:
            feed.read_video(int(self._ticks[span.last - 1]) + 1)
            form = self._form
            units = packet_infos(
                feed.video, self._ticks, span.first, form.header, form.codec, feed.changed_from
            )
            fault = copyable(
                self._form, self._size, self._timeline, units, span.first, span.last, config.max_bits
            )
        if fault is not None:
            if config.mode == "copy":
                raise CutError(f"cannot be copied: {fault}")
            return None
        # Exactly the span's packets, and behind them its frames for those who watch.
        frame_of_packet = {unit.place: unit.number for unit in units[: span.last - span.first]}
        run = [(packet, frame_of_packet[index]) for index, packet in feed.video if index in frame_of_packet]
        data = copy(self._stream, run, span.first, self._timeline.clip_rate(span.first, span.last))
        for frame_index, frame in self._frames_of(span) if self._decodes else ():
            if self._observe is not None:
                self._observe(span, frame_index, frame, self._finish_frame(frame))
        return data

    def _encode_span(self, span: Span, max_bytes: float) -> tuple[int, bytes]:
        config, rate = self._config, self._timeline.clip_rate(span.first, span.last)
        times = self._times_shown(span)
        # Packets are copied where a plan says so; elsewhere all is encoded.
        settings = self._left_size, rate, config, max_bytes
        encoder: encode.ClipEncoder | SmartClip
        if self._smart is not None and self._crop is None and self._plans[span].segments:
            encoder = SmartClip(self._stream, self._smart, self._feed.take_packet, span.first, *settings)
        else:
            encoder = encode.ClipEncoder(encode.codec_name(config.encoder, self._size.bits), *settings)
        # An encoder that is left halfway holds threads and memory.
        try:
            for frame_index, frame in self._frames_of(span):
                picture = self._finish_frame(frame)
                encoder.show(self._cropped(picture, self._crop), times[frame_index - span.first])
                if self._observe is not None:
                    self._observe(span, frame_index, frame, picture)
            return sum(times), encoder.finish()
        except BaseException:
            encoder.abandon()
            raise

    @property
    def _left_size(self) -> Geometry:
        """Size of the clip in work, without what it loses."""
        return self._size if self._crop is None else self._crop.size(self._size)

    def _times_shown(self, span: Span) -> list[int]:
        """Return how often an encoded clip shows each frame of the source, which fills its constant rate."""
        slots = self._timeline.clip_frames(span.first, span.last)
        return list(map(int, np.bincount(slots - span.first, minlength=span.last - span.first)))

    def _frames_of(self, span: Span) -> Iterator[tuple[int, VideoFrame]]:
        """Yield the frames of a span with their numbers; earlier frames are skipped."""
        while self._number < span.last:
            frame = next(self._frames, None)
            if frame is None:
                raise CutError("its frames could not be decoded a second time")
            self._number += 1
            if self._number > span.first:
                yield self._number - 1, frame

    def _finish_frame(self, frame: VideoFrame) -> VideoFrame:
        try:
            return self._pictures.finish(frame)
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
            raise CutError(f"its pictures could not be converted: {error}") from error

    def _assemble_clip(
        self,
        span: Span,
        mode: CodecMode,
        picture: bytes,
        frames: int,
        rate: Fraction,
        sound: Sound,
    ) -> CutClip:
        size, extent = self._left_size, self._config.verify
        clip = partial(
            CutClip, span=span, frames=frames, rate=rate, geometry=size, codec_mode=mode, crop=self._crop
        )
        if sound.data:
            try:
                data = fast_start(merge(picture, sound.data))
                return clip(
                    data=data,
                    audio=sound.name,
                    audio_remark=sound.remark,
                    audio_dbfs=verify(data, frames, rate, size, sound=True, extent=extent),
                )
            except DamagedSoundError as error:
                if sound.mended is not None:
                    return self._assemble_clip(span, mode, picture, frames, rate, sound.mended())
                sound = damaged_sound(sound.name, str(error))
            except (av.error.FFmpegError, ValueError, CutError) as error:
                refuse_shortage(error)
                sound = Sound(fault=f"its sound does not fit beside its pictures: {error}")
        data = fast_start(picture)
        return clip(
            data=data,
            audio_fault=sound.fault,
            audio_remark=sound.remark,
            audio_dbfs=verify(data, frames, rate, size, sound=False, extent=extent),
        )
