"""Lossless copying of a span's packets of H.264 or HEVC, where that is exact to the frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.mp4 import Mp4
from reelweave.curate.frames.container.side_data import side_data
from reelweave.curate.frames.decode_entry import holds_idr
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry, shape_at
from reelweave.loader.dataset.colour import hdr
from reelweave.loader.dataset.tars.orientation import Orientation, orientation_of
from reelweave.loader.errors import refuse_shortage

CODECS = {8: ("h264",), 10: ("h264", "hevc")}
"""Codecs whose packets are copied, by the maximum bits per sample of clips."""

_PROGRESSIVE = 1  # AVFieldOrder: 0 unknown, 1 progressive, above interlaced
_FULL_RANGE = 2


@dataclass(frozen=True)
class SourceFormat:
    """Properties of a source that decide whether its packets can be copied.

    Attributes:
        codec: Name of the codec in FFmpeg.
        pixel_format: Pixel format of decoded frames.
        width: Width of decoded frames.
        height: Height of decoded frames.
        turned: True when players rotate or mirror the pictures.
        cropped: True when the container states edges that players cut off.
        square: True for square pixels.
        progressive: True for progressive frames.
        full_range: True for full-range samples.
        transfer: Transfer characteristics of the first frame, in ITU-T H.273.
        header: Parameter sets of the stream, as stored in the container.
        reorders: True when decoding and display order differ.
    """

    codec: str
    pixel_format: str
    width: int
    height: int
    turned: bool
    cropped: bool
    square: bool
    progressive: bool
    full_range: bool
    transfer: int
    header: bytes
    reorders: bool


@dataclass(frozen=True)
class PacketInfo:
    """One packet of the video stream.

    Attributes:
        place: Position in the file's order.
        number: Number of the source frame in the packet; -1 when no frame has its time.
        idr: True when decoding can begin here, without references across it.
        sound: True when the packet is undamaged, visible, and changes no parameters.
    """

    place: int
    number: int
    idr: bool
    sound: bool


def format_of(stream: VideoStream, first: VideoFrame) -> SourceFormat:
    """Return the form of a source with this first frame."""
    context = stream.codec_context
    return SourceFormat(
        codec=context.codec.canonical_name,
        pixel_format=first.format.name,
        width=first.width,
        height=first.height,
        turned=orientation_of(first) != Orientation(),
        cropped=side_data(stream).crop is not None,
        square=(stream.sample_aspect_ratio or 1) == 1,
        progressive=context.field_order <= _PROGRESSIVE and not first.interlaced_frame,
        full_range=first.color_range == _FULL_RANGE,
        transfer=int(first.color_trc),
        header=bytes(context.extradata or b""),
        reorders=context.has_b_frames,
    )


def copyable(
    form: SourceFormat,
    size: Geometry,
    timeline: FrameTimes,
    units: Sequence[PacketInfo],
    first: int,
    last: int,
    max_bits: int = 8,
) -> str | None:
    """Return why frames ``[first, last)`` of a source cannot be copied exactly, or None when they can.

    Args:
        form: Form of the source.
        size: Size of clips from this source.
        timeline: Timeline of the source.
        units: Packets in the file's order, from the one that shows ``first`` on; empty when there is none.
        first: First frame, in display order.
        last: One past the last frame.
        max_bits: Maximum bits per sample of clips; clips of 8 bits are H.264.
    """
    if timeline.shapes and (shape := shape_at(timeline.shapes, first)).first > 0:
        # Form and parameter sets are those of the first pictures.
        return f"its pictures change their shape before it, {timeline.shapes[0].change_to(shape)}"
    return form_fault(form, size, timeline.deinterlace, max_bits) or _span_fault(
        form, timeline, units, first, last
    )


def form_fault(form: SourceFormat, size: Geometry, deinterlaced: bool, max_bits: int = 8) -> str | None:
    """Return why no packet of a source can be in a clip as it is, or None.

    Args:
        form: Form of the source.
        size: Size of clips from this source.
        deinterlaced: True where clips show deinterlaced pictures.
        max_bits: Maximum bits per sample of clips.
    """
    if form.codec not in CODECS[max_bits]:
        return f"its codec is {form.codec}, not {' or '.join(CODECS[max_bits])}"
    if form.pixel_format != size.pixel_format or form.full_range:
        return f"its pictures are {form.pixel_format}, not {size.bits}-bit 4:2:0 of limited range"
    if not form.progressive or deinterlaced:
        return "it is interlaced"
    if form.turned:
        return "its pictures are stored turned"
    if form.cropped:
        return "its container crops its pictures"
    if not form.square:
        return "its pixels are not square"
    if size.bits == 8 and form.transfer in (hdr.PQ, hdr.HLG):
        return "it is HDR"
    if (form.width, form.height) != (size.width, size.height):
        return f"its pictures are {form.width}x{form.height} and clips {size.width}x{size.height}"
    if not form.header:
        return "its container holds no parameter sets"
    return None


def _span_fault(
    form: SourceFormat, timeline: FrameTimes, units: Sequence[PacketInfo], first: int, last: int
) -> str | None:
    count = last - first
    if timeline.is_lowered(first, last):
        return "cut.fps lowers its rate"
    slots = timeline.clip_frames(first, last)
    if not np.array_equal(slots, np.arange(first, last)):
        return "its frame rate is not constant there"
    if not units or units[0].number != first or not units[0].idr:
        return "it does not begin on a key frame that closes what was before"
    run = units[:count]
    if any(unit.place != units[0].place + at for at, unit in enumerate(run)):
        return "its packets do not lie in one run"
    if sorted(unit.number for unit in run) != list(range(first, last)):
        return "frames inside it are decoded only after frames behind it"
    if not all(unit.sound for unit in run):
        return "it holds packets that are damaged, hidden or change parameters"
    if form.reorders and count > 1 and [unit.number for unit in run] == list(range(first, last)):
        # Decoding times mistaken for display times give this order; so does a run without B-frames.
        return "its frames are stored in the order in which they are shown, although it may have B-frames"
    return None


def packet_infos(
    packets: Sequence[tuple[int, Packet[VideoStream]]],
    ticks: NDArray[np.int64],
    first: int,
    header: bytes,
    codec: str,
    changed_from: float = math.inf,
) -> list[PacketInfo]:
    """Return the packets from the one that shows frame ``first`` on.

    Args:
        packets: Packets with their positions, in the file's order.
        ticks: int64 [frames + 1]: display time of each frame, in the stream's time base.
        first: Frame number.
        header: Parameter sets, as in `SourceFormat`.
        codec: Name of the codec, as in `SourceFormat`.
        changed_from: Position from which the parameter sets are others; see `has_new_header`.
    """
    frame_indices = np.searchsorted(ticks[:-1], [packet.pts or 0 for _, packet in packets])
    units: list[PacketInfo] = []
    for (index, packet), at in zip(packets, frame_indices.tolist(), strict=True):
        frame_index = at if at < len(ticks) - 1 and int(ticks[at]) == packet.pts else -1
        if not units and frame_index != first:
            continue
        # Only the first packet must be an IDR picture.
        idr = not units and packet.is_keyframe and holds_idr(bytes(packet), header, codec)
        units.append(PacketInfo(index, frame_index, idr, is_sound(packet) and index < changed_from))
    return units


def is_sound(packet: Packet[VideoStream]) -> bool:
    """Return True for a packet that is undamaged and visible, and changes no parameters."""
    return not (packet.is_corrupt or packet.is_discard or has_new_header(packet))


def has_new_header(packet: Packet[VideoStream]) -> bool:
    """Return True where the container states other parameter sets from a packet on, as FLV and joined MP4 do.

    Packets from there on cannot be copied beside the film's first sets: wrong pictures decode without an error.
    """
    return packet.has_sidedata("new_extradata") or packet.has_sidedata("param_change")


def decoding_times(shown: Sequence[int]) -> list[int]:
    """Return the decoding time of each packet in frames: rising by one, never after its display time.

    Args:
        shown: Display times in decoding order; a permutation of 0, 1, ...
    """
    delay = max((index - at for index, at in enumerate(shown)), default=0)
    return [index - delay for index in range(len(shown))]


def copy(
    stream: VideoStream,
    run: Sequence[tuple[Packet[VideoStream], int]],
    first: int,
    rate: Fraction,
) -> bytes:
    """Write packets to an MP4 file on the grid of ``rate``, with its index last; the packets are left unchanged.

    Args:
        stream: Stream of the packets.
        run: Packets of a whole span in decoding order, each with its frame number.
        first: First frame of the span.
        rate: Frames per second.

    Raises:
        CutError: MP4 cannot hold the packets.
    """
    shown = [frame_index - first for _, frame_index in run]
    header = bytes(stream.codec_context.extradata or b"")
    codec = stream.codec_context.codec.canonical_name
    try:
        file = Mp4()
        target = file.add_like(stream)
        target.time_base = 1 / rate
        for (packet, _), pts, dts in zip(run, shown, decoding_times(shown), strict=True):
            twin = Packet(bytes(packet))
            twin.stream, twin.time_base = target, 1 / rate
            twin.pts, twin.dts, twin.duration = pts, dts, 1
            # Key frames of open groups of pictures are no seek points.
            twin.is_keyframe = packet.is_keyframe and holds_idr(bytes(packet), header, codec)
            file.container.mux_one(twin)
        return file.close()
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise CutError(f"could not be copied: {error}") from error
