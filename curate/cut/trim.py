"""Spans trimmed to runs of packets that can be copied."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.copy import PacketInfo, SourceFormat, copyable, format_of, has_new_header, is_sound
from reelweave.curate.cut.crop import BarMeter
from reelweave.curate.frames.decode_entry import holds_idr
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry
from reelweave.curate.shots.spans import Span, SpanConfig, long_enough

_LEFT_OUT = "left out, so that the packets of its clip can be copied (cut.trim_s)"


@dataclass
class NotedPackets:
    """Packets of a source's pictures in the file's order, noted while it is decoded.

    Attributes:
        stream: Video stream of the source.
        pts: Stamp of each packet in ticks.
        idr: 1 for packets at which decoding can begin.
        whole: 1 for packets that are undamaged, visible, and change no parameters.
        form: Form of the source, once a frame was decoded.
        time_base: Seconds per tick, once a frame was decoded.
        has_changed: True once a packet brought other parameter sets; see `has_new_header`.
    """

    stream: VideoStream
    pts: array[int] = field(default_factory=lambda: array("q"))
    idr: bytearray = field(default_factory=bytearray)
    whole: bytearray = field(default_factory=bytearray)
    form: SourceFormat | None = None
    time_base: Fraction | None = None
    has_changed: bool = False

    def take(self, packet: Packet[VideoStream]) -> None:
        context = self.stream.codec_context
        header = bytes(context.extradata or b"") if packet.is_keyframe else b""
        codec = context.codec.canonical_name
        self.pts.append(-1 if packet.pts is None else packet.pts)
        self.idr.append(packet.is_keyframe and holds_idr(bytes(packet), header, codec))
        self.has_changed |= has_new_header(packet)
        self.whole.append(packet.pts is not None and is_sound(packet) and not self.has_changed)

    def begin(self, frame: VideoFrame) -> None:
        """Note the first frame of the source."""
        self.form = format_of(self.stream, frame) if frame.pts is not None else None
        self.time_base = self.stream.time_base


def trim_spans(
    spans: Sequence[Span],
    packets: NotedPackets,
    begin_pts: int | None,
    timeline: FrameTimes,
    size: Geometry,
    config: CutConfig,
    lengths: SpanConfig,
    bars: BarMeter | None = None,
) -> list[Span]:
    """Return spans of which those that could be copied, but for a little at their ends, have lost it.

    What they lose becomes spans of its own, with a fault. A span that cannot be copied even so stays as it is.

    Args:
        spans: Adjacent spans of a source.
        packets: Packets of its pictures.
        begin_pts: Stamp of its first frame, or None when unknown.
        timeline: Timeline of the source.
        size: Size of its clips.
        config: Settings of copies.
        lengths: Lengths of clips.
        bars: Bars that are cropped; clips that lose some are encoded, whatever their ends.
    """
    # Which packet begins a copy at which frame.
    form, time_base = packets.form, packets.time_base
    if form is None or time_base is None or begin_pts is None or timeline.shifts_s is not None:
        return list(spans)
    ticks = np.rint(timeline.times_s / float(time_base)).astype(np.int64) + begin_pts
    stamps = np.array(packets.pts, np.int64)
    at = np.searchsorted(ticks[:-1], stamps).clip(0, len(ticks) - 2)
    frame_indices = np.where(ticks[at] == stamps, at, -1).tolist()
    packet_of_frame = {
        frame_index: index
        for index, frame_index in enumerate(frame_indices)
        if packets.idr[index] and frame_index >= 0
    }

    def is_copyable(first: int, last: int) -> bool:
        run = range(packet_of_frame[first], packet_of_frame[first] + last - first)
        units = [
            PacketInfo(index, frame_indices[index], bool(packets.idr[index]), bool(packets.whole[index]))
            for index in run
        ]
        return copyable(form, size, timeline, units, first, last, config.max_bits) is None

    # The first run of a span that is long enough and can be copied takes its place; the rest has a fault.
    trimmed_spans: list[Span] = []
    for span in spans:
        run = None
        if span.fault is None and (bars is None or bars.crop(span.first, span.last, size) is None):
            runs = _runs(span, frame_indices, packet_of_frame, timeline, config.trim_s)
            usable = (run for run in runs if long_enough(_duration_s(run, timeline), lengths))
            run = next((run for run in usable if is_copyable(*run)), None)
        trimmed_spans += [span] if run is None else _split(span, *run, timeline)
    return trimmed_spans


def _runs(
    span: Span,
    frame_indices: Sequence[int],
    packet_of_frame: dict[int, int],
    timeline: FrameTimes,
    trim_s: float,
) -> Iterator[tuple[int, int]]:
    """Yield, for each key frame near the start of a span, the longest closed run of packets within it."""
    times_s = timeline.times_s
    for first in range(span.first, span.last):
        if times_s[first] - times_s[span.first] > trim_s:
            return
        if first not in packet_of_frame:
            continue
        highest, last = first - 1, first
        run = frame_indices[packet_of_frame[first] : packet_of_frame[first] + span.last - first]
        for count, frame_index in enumerate(run, start=1):
            if not first <= frame_index < span.last:
                break
            highest = max(highest, frame_index)
            if highest - first + 1 == count:
                last = highest + 1
        if first < last and times_s[span.last] - times_s[last] <= trim_s:
            yield first, last


def _duration_s(run: tuple[int, int], timeline: FrameTimes) -> float:
    return float(timeline.times_s[run[1]] - timeline.times_s[run[0]])


def _split(span: Span, first: int, last: int, timeline: FrameTimes) -> list[Span]:
    times_s = timeline.times_s.tolist()
    pieces = [
        replace(span, first=a, last=b, start_s=times_s[a], end_s=times_s[b])
        for a, b in ((span.first, first), (first, last), (last, span.last))
    ]
    for index in (0, 2):
        pieces[index] = replace(pieces[index], fault=_LEFT_OUT, fault_state="filtered", stage="spans")
    return [piece for piece in pieces if piece.first < piece.last]
