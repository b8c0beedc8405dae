"""Copying a span's H.264 packets without loss, where that is exact to the frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curate.cut.clip import CutError
from curate.cut.mp4 import Mp4
from curate.frames import hdr
from curate.frames.frame_times import Timeline, source_frames
from curate.frames.picture import Geometry
from loader.dataset.tars.orientation import Turn, turn_of

_PROGRESSIVE = 1  # AVFieldOrder: 0 unknown, 1 progressive, above interlaced
_FULL_RANGE = 2
_SLICE_IDR = 5  # nal_unit_type of ITU-T H.264, table 7-1


@dataclass(frozen=True)
class Form:
    """What of a source decides whether any of it can be copied.

    Attributes:
        codec: FFmpeg's name of the codec.
        pixel_format: as decoded.
        width: as decoded.
        height: as decoded.
        turned: whether viewers turn or mirror it.
        square: whether its pixels are.
        progressive: whether its frames are.
        full_range: whether it uses the full range of values.
        transfer: characteristics of its first frame, in ITU-T H.273.
        header: parameter sets of the stream, as the container holds them.
        reorders: whether it is decoded in another order than shown.
    """

    codec: str
    pixel_format: str
    width: int
    height: int
    turned: bool
    square: bool
    progressive: bool
    full_range: bool
    transfer: int
    header: bytes
    reorders: bool


@dataclass(frozen=True)
class Unit:
    """One packet of the picture stream.

    Attributes:
        place: in the file's order.
        number: of the source's frame it shows; -1 when there is none at its time.
        idr: whether decoding can begin here, and nothing after it needs or precedes what was before.
        sound: whether it is undamaged, shown, and no change of parameters.
    """

    place: int
    number: int
    idr: bool
    sound: bool


def form_of(stream: VideoStream, first: VideoFrame) -> Form:
    """The form of a source with this first frame."""
    context = stream.codec_context
    return Form(
        codec=context.codec.canonical_name,
        pixel_format=first.format.name,
        width=first.width,
        height=first.height,
        turned=turn_of(first) != Turn(),
        square=(stream.sample_aspect_ratio or 1) == 1,
        progressive=context.field_order <= _PROGRESSIVE and not first.interlaced_frame,
        full_range=first.color_range == _FULL_RANGE,
        transfer=int(first.color_trc),
        header=bytes(context.extradata or b""),
        reorders=context.has_b_frames,
    )


def copyable(
    form: Form, size: Geometry, timeline: Timeline, units: Sequence[Unit], first: int, last: int
) -> str | None:
    """Why frames ``[first, last)`` of a source cannot be copied, or None when they can, exactly.

    Args:
        form: of the source.
        size: clips of this source have.
        timeline: of the source.
        units: the packets in the file's order, from the one that shows ``first`` on; empty when there is none.
        first: first frame, in shown order.
        last: one past the last frame.
    """
    return _form_fault(form, size, timeline) or _span_fault(form, timeline, units, first, last)


def _form_fault(form: Form, size: Geometry, timeline: Timeline) -> str | None:
    if form.codec != "h264":
        return f"its codec is {form.codec}, not h264"
    if form.pixel_format != "yuv420p" or form.full_range:
        return f"its pictures are {form.pixel_format}, not 8-bit 4:2:0 of limited range"
    if not form.progressive or timeline.deinterlace:
        return "it is interlaced"
    if form.turned:
        return "its pictures are stored turned"
    if not form.square:
        return "its pixels are not square"
    if form.transfer in (hdr.PQ, hdr.HLG):
        return "it is HDR"
    if (form.width, form.height) != (size.width, size.height):
        return f"its pictures are {form.width}x{form.height} and clips {size.width}x{size.height}"
    if not form.header:
        return "its container holds no parameter sets"
    return None


def _span_fault(form: Form, timeline: Timeline, units: Sequence[Unit], first: int, last: int) -> str | None:
    count = last - first
    slots = source_frames(timeline.times_s, first, last, timeline.rate)
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
        # Times of decoding taken for times of showing look like this; so does a run without B-frames.
        return "its frames are stored in the order in which they are shown, although it may have B-frames"
    return None


def units_of(
    packets: Sequence[tuple[int, Packet[VideoStream]]], ticks: NDArray[np.int64], first: int, header: bytes
) -> list[Unit]:
    """The packets from the one that shows frame ``first`` on.

    Args:
        packets: with their places, in the file's order.
        ticks: int64 [frames + 1]: when each frame is shown, in the stream's time base.
        first: frame number.
        header: of `Form`.
    """
    numbers = np.searchsorted(ticks[:-1], [packet.pts or 0 for _, packet in packets])
    units: list[Unit] = []
    for (place, packet), at in zip(packets, numbers.tolist(), strict=True):
        number = at if at < len(ticks) - 1 and int(ticks[at]) == packet.pts else -1
        if not units and number != first:
            continue
        whole = not (packet.is_corrupt or packet.is_discard)
        changes = packet.has_sidedata("new_extradata") or packet.has_sidedata("param_change")
        # The first packet alone is asked whether decoding can begin there.
        idr = not units and packet.is_keyframe and holds_idr(bytes(packet), header)
        units.append(Unit(place, number, idr, whole and not changes))
    return units


def holds_idr(packet: bytes, header: bytes) -> bool:
    """Whether an H.264 packet is an IDR picture, told from its NAL units.

    Args:
        packet: length-prefixed (ISO/IEC 14496-15) or with start codes (ITU-T H.264, annex B).
        header: says which: it begins with 1 when lengths go before the units.
    """
    if header[:1] != b"\x01" or len(header) < 5:
        at = packet.find(b"\x00\x00\x01")
        while at >= 0 and at + 3 < len(packet):
            if packet[at + 3] & 31 == _SLICE_IDR:
                return True
            at = packet.find(b"\x00\x00\x01", at + 3)
        return False
    width, at = (header[4] & 3) + 1, 0
    while at + width < len(packet):
        if packet[at + width] & 31 == _SLICE_IDR:
            return True
        at += width + int.from_bytes(packet[at : at + width], "big")
    return False


def decoding_times(shown: Sequence[int]) -> list[int]:
    """When each packet is decoded, in frames: rising by one, never after it is shown.

    Args:
        shown: when each is shown, in the order of decoding; a permutation of 0, 1, ...
    """
    delay = max((place - at for place, at in enumerate(shown)), default=0)
    return [place - delay for place in range(len(shown))]


def copy(
    stream: VideoStream,
    run: Sequence[tuple[Packet[VideoStream], int]],
    first: int,
    rate: Fraction,
) -> bytes:
    """An MP4 file of these packets on the grid of ``rate``, its index last; the packets stay as they are.

    Args:
        stream: they come from.
        run: the packets of a whole span in the order of decoding, each with the number of the frame it shows.
        first: frame of the span.
        rate: frames per second.

    Raises:
        CutError: MP4 cannot hold them.
    """
    shown = [number - first for _, number in run]
    header = bytes(stream.codec_context.extradata or b"")
    try:
        file = Mp4()
        target = file.container.add_stream_from_template(stream)
        target.time_base = 1 / rate
        for (packet, _), pts, dts in zip(run, shown, decoding_times(shown), strict=True):
            twin = Packet(bytes(packet))
            twin.stream, twin.time_base = target, 1 / rate
            twin.pts, twin.dts, twin.duration = pts, dts, 1
            # Key frames of open groups of pictures are none for readers that seek.
            twin.is_keyframe = packet.is_keyframe and holds_idr(bytes(packet), header)
            file.container.mux_one(twin)
        return file.close()
    except (av.error.FFmpegError, ValueError) as error:
        raise CutError(f"could not be copied: {error}") from error
