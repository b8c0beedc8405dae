"""Decode of one part of a long source: what a whole decode would see of its frames, to be joined with the other parts.

The small picture of each frame is all that shots, stitching and statistics need, so joining decodes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, BinaryIO, Self, cast

import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.crop import BarMeter, BarNotes
from reelweave.curate.cut.smart.noted import PacketNotes
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.frames.container.stream_choice import choose_sound
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.decode_entry import EntryError, enter
from reelweave.curate.frames.interlace import CombMeter
from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.frames.picture import Geometry, checksum, marks_of
from reelweave.curate.frames.probe import probe
from reelweave.curate.frames.sound_clock import NotingDemuxer
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.curate.frames.telecine import FieldDifferences
from reelweave.curate.shots.scale import Scaler
from reelweave.curate.source_pass.ahead_clip import AheadClip
from reelweave.curate.source_pass.part import PART_FRAMES, Part
from reelweave.curate.source_pass.parts.clips import PartAhead
from reelweave.curate.source_pass.scan import smart_packets
from reelweave.curate.sources.segments import Segment

COMPARED = 8
"""Frames at the beginning of a part that the part before decodes too: they must be the same."""

CHANGES = "its pictures change their shape"
"""Reason for which a source stays whole."""

_REORDERING = frozenset({"h264", "hevc"})
"""Codecs that show frames in another order than they store them, one for each packet."""


_VALUES = ("packets", "size", "interlaced", "begin", "behind", "pixels")
_ARRAYS = ("pts", "durations", "fields", "sound", "changes")


@dataclass(frozen=True)
class PartSignals:
    """Signals of the frames of one part, in display order.

    Attributes:
        pts: Stamp of each frame in ticks.
        durations: Duration of each frame in ticks, 0 where unknown.
        changes: uint8 [frames, 36, 64, 3]: small RGB picture of each frame less that of the frame before, modulo 256,
            which takes less room.
        fields: float64 [frames + 1, 2]: differences of each frame's fields from those of the frame before. The last
            row is the first frame behind the end. It is empty where the film is not telecined.
        sound: int64 [packets, 3]: stamp, duration and number of earlier video packets of the part.
        packets: Number of video packets before the first one of the next part.
        size: Width, height and colours of a clip, by the first frame.
        interlaced: True if a frame is interlaced.
        begin: (stamp, duration, checksum) of its first frames, of those behind its end where it is short.
        behind: The same of the first frames behind its end.
        pixels: Number of pixels of all frames.
        notes: Notes on its packets for ``cut.mode=smart``, or None.
        bars: Bars of its frames for ``cut.crop_bars``, or None.
    """

    pts: NDArray[np.int64]
    durations: NDArray[np.int64]
    changes: NDArray[np.uint8]
    fields: NDArray[np.float64]
    sound: NDArray[np.int64]
    packets: int
    size: tuple[int, ...]
    interlaced: bool
    begin: tuple[tuple[int, int, int], ...]
    behind: tuple[tuple[int, int, int], ...]
    pixels: int
    notes: PacketNotes | None = None
    bars: BarNotes | None = None

    def values(self) -> dict[str, Any]:
        """Return all but the arrays as JSON values."""
        notes = {} if self.notes is None else self.notes.values()
        return {**{name: getattr(self, name) for name in _VALUES}, **notes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        notes = {} if self.notes is None else self.notes.arrays()
        bars = {} if self.bars is None else self.bars.arrays()
        return {**{name: getattr(self, name) for name in _ARRAYS}, **notes, **bars}

    def pictures(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the small picture of each frame, [36, 64, 3]."""
        picture = np.zeros(self.changes.shape[1:], np.uint8)
        for change in self.changes:
            picture = picture + change
            yield picture

    @classmethod
    def read(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the signals of `values` and `arrays`."""
        prints = {name: tuple(map(tuple, values[name])) for name in ("begin", "behind")}
        plain = {name: values[name] for name in _VALUES} | {name: arrays[name] for name in _ARRAYS}
        notes = PacketNotes.read(values, arrays)
        bars = BarNotes.read(arrays)
        return cls(**{**plain, "size": tuple(values["size"]), **prints, "notes": notes, "bars": bars})


def scan_part(
    file: BinaryIO,
    config: SourceStageConfig,
    part: Part,
    keep: Callable[[Geometry | None, Iterator[AheadClip]], None],
    segments: Sequence[Segment] = (),
) -> PartSignals:
    """Decode a part of a source, and a few frames more.

    Args:
        file: File of the source.
        config: Configuration of the pass.
        part: The part.
        keep: Called with the clips that could be encoded meanwhile, their frames counted from the part's first, and
            with their size.
        segments: Segments that a list names.

    Raises:
        SourceError: a limit is exceeded, or the source has to stay whole: its words say why.
    """
    end_pts = None if part.end_s is None else _key_pts(file, config, part.end_s)
    limits = config.probe
    file.seek(0)
    with (
        ExitStack() as stack,
        open_video(file, max_pixels=limits.max_width * limits.max_height, motion_vectors=True) as (
            container,
            stream,
        ),
    ):
        header = probe(container, stream, limits, file)
        begin_pts = None if part.number == 0 else enter(container, stream, _ticks(stream, part.begin_s))
        sound = choose_sound(container, stream, file).stream if config.cut.audio == "keep" else None
        is_begin = part.number == 0
        smart = smart_packets(container, stream, header, config, keeps=True, is_begin=is_begin)
        noting = NotingDemuxer(container, sound, None if smart is None else smart.take)
        packets = _Packets(noting, end_pts)
        decoder = Decoder(cast(InputContainer, packets), stream, limits, file=file, is_begin=is_begin)
        inverts = limits.interlaced == "deinterlace"
        fields = FieldDifferences(header.rate if inverts else None, trial=is_begin)
        comb = CombMeter() if limits.interlaced != "keep" else None
        frames = _Frames(header.codec, end_pts)
        scale = Scaler(PICTURE)
        time_base = stream.time_base or Fraction(1, 1000)
        bars = BarMeter(time_base, header.fps) if config.cut.crop_bars else None
        ahead = PartAhead(stack, header, config, stream, container.size, part, segments, smart, bars)
        for frame in decoder.frames():
            if begin_pts is not None and not frames.seen:
                # Leading frames belong to the part before.
                if frame.pts is None or frame.pts < begin_pts:
                    continue
                if frame.pts != begin_pts:
                    raise EntryError("a part does not begin with its key frame")
            picture = scale(frame)
            if len(decoder.shapes) > 1:
                raise SourceError(CHANGES)
            shape = decoder.shapes[0]
            ended = frames.take(frame, picture, fields, shape.kind)
            if smart is not None:
                smart.show(frame, marks_of(frame))
            if bars is not None:
                bars.push(frame)
            ahead.push(frame, picture, shape)
            if comb is not None:
                comb.push(frame)
            # The next part cannot know whether a shot begins with it.
            if ended and ahead.has_passed(len(frames.pts) + 1):
                break
        if not frames.seen:
            raise SourceError("a part of it holds no frame")
        skipped = 0 if begin_pts is None else packets.leading(begin_pts)
        if any(hurt.last > skipped for hurt in decoder.damage()):
            raise SourceError("some of it is damaged")
        last_pts = frames.pts[-1] + 1 if frames.pts else 0
        if end_pts is None and decoder.undecoded(last_pts) is not None:
            raise SourceError("its last packets give no picture")
        if decoder.interlaced and inverts:
            raise SourceError("some of it is interlaced")
        if comb is not None and comb.some():
            raise SourceError("some of it is interlaced without a mark")
        # The one pass says so of all clips.
        if decoder.turned:
            raise SourceError("its codec turns some of it")
        if noting.hidden.is_between:
            raise SourceError("some of it is hidden")
        if header.codec in _REORDERING and frames.pts.tolist() != packets.shown_stamps(begin_pts, end_pts):
            raise SourceError("its frames do not follow its packets")
        notes = None if smart is None else _notes_of(smart, packets, frames)
        keep(ahead.size, ahead.clips(frames.pts, frames.durations, end_pts is None))
        signals = frames.signals(packets, fields, decoder.interlaced, notes)
        return signals if bars is None else replace(signals, bars=bars.notes(len(frames.pts)))


def _notes_of(smart: SmartPackets, packets: _Packets, frames: _Frames) -> PacketNotes:
    """Return the notes on the packets and frames of a part, without those behind it."""
    notes = smart.notes(packets.count(), len(frames.pts))
    if notes.changes:
        raise SourceError("its parameter sets change, or lie in its packets alone")
    return notes


def _key_pts(file: BinaryIO, config: SourceStageConfig, near_s: float) -> int:
    """Return the stamp of the last key frame before a time."""
    limits = config.probe
    file.seek(0)
    with open_video(file, max_pixels=limits.max_width * limits.max_height) as (container, stream):
        return enter(container, stream, _ticks(stream, near_s))


def _ticks(stream: VideoStream, near_s: float) -> int:
    return (stream.start_time or 0) + int(near_s / (stream.time_base or 1))


class _Packets:
    """Packet source for the decoder that counts what belongs to the part."""

    def __init__(self, noting: NotingDemuxer, end_pts: int | None) -> None:
        self._noting, self._end_pts = noting, end_pts
        self.size = noting.size
        self._pts: list[int] = []
        self._seen = 0  # packets with data
        self.pictures: int | None = None  # packets before the first one of the next part
        self._sounds = 0

    def demux(self, video: VideoStream) -> Iterator[Packet[VideoStream]]:
        for packet in self._noting.demux(video):
            self._seen += packet.size > 0
            if packet.size and packet.pts is not None and not packet.is_discard:
                self._pts.append(packet.pts)
            if self.pictures is None and packet.pts is not None and packet.pts == self._end_pts:
                self.pictures = self._seen - 1
                self._sounds = len(self._noting.sound.pts)
            yield packet

    def leading(self, begin_pts: int) -> int:
        """Return the number of packets shown before the first frame of the part."""
        return sum(pts < begin_pts for pts in self._pts)

    def shown_stamps(self, begin_pts: int | None, end_pts: int | None) -> list[int]:
        """Return the stamps of all packets of the part in display order."""
        return sorted(
            pts
            for pts in self._pts
            if (begin_pts is None or pts >= begin_pts) and (end_pts is None or pts < end_pts)
        )

    def sound(self) -> NDArray[np.int64]:
        noted = self._noting.sound
        sounds = len(noted.pts) if self.pictures is None else self._sounds
        columns = (noted.pts, noted.durations, noted.pictures_before)
        return np.array([column[:sounds] for column in columns], np.int64).T.reshape(-1, 3)

    def count(self) -> int:
        return self._seen if self.pictures is None else self.pictures


@dataclass
class _Frames:
    """Frames of a part so far, and those behind its end."""

    codec: str
    end_pts: int | None
    pts: array[int] = field(default_factory=lambda: array("q"))
    durations: array[int] = field(default_factory=lambda: array("q"))
    changes: bytearray = field(default_factory=bytearray)
    last: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((PICTURE[1], PICTURE[0], 3), np.uint8))
    begin: list[tuple[int, int, int]] = field(default_factory=list)
    behind: list[tuple[int, int, int]] = field(default_factory=list)
    size: tuple[int, ...] = (0, 0)
    pixels: int = 0

    @property
    def seen(self) -> int:
        """Number of frames so far."""
        return len(self.pts) + len(self.behind)

    def take(
        self,
        frame: VideoFrame,
        picture: NDArray[np.uint8],
        fields: FieldDifferences,
        size: tuple[int, ...],
    ) -> bool:
        """Take the next frame, and return whether enough of them were seen."""
        # Parts are joined by their time stamps, and read no further than a header's promise allows.
        if frame.pts is None or (self.pts and frame.pts <= self.pts[-1]):
            raise SourceError("its time stamps do not rise")
        if len(self.pts) > 4 * PART_FRAMES:
            raise SourceError("a part of it holds many more frames than its header promises")
        self.size = size
        # Frames at both ends are kept as checksums: those of neighbouring parts must be the same ones.
        over = self.end_pts is not None and frame.pts >= self.end_pts
        if len(self.behind if over else self.begin) < COMPARED:
            shown = (frame.pts, frame.duration or 0, checksum(frame))
            if len(self.begin) < COMPARED:
                self.begin.append(shown)
            if over:
                self.behind.append(shown)
                if len(self.behind) == 1:
                    fields.push(frame)
        if over:
            return len(self.behind) == COMPARED
        # Statistics of the part's own frames.
        self.pts.append(frame.pts)
        self.durations.append(frame.duration or 0)
        self.changes += (picture - self.last).tobytes()
        self.last = picture
        self.pixels += frame.width * frame.height
        fields.push(frame)
        return False

    def signals(
        self, packets: _Packets, fields: FieldDifferences, interlaced: bool, notes: PacketNotes | None
    ) -> PartSignals:
        return PartSignals(
            np.array(self.pts, np.int64),
            np.array(self.durations, np.int64),
            np.frombuffer(self.changes, np.uint8).reshape(-1, *self.last.shape),
            fields.values,
            packets.sound(),
            packets.count(),
            self.size,
            interlaced,
            tuple(self.begin),
            tuple(self.behind),
            self.pixels,
            notes,
        )
