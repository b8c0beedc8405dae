"""Probe of a sample's media from its bytes: frames that a player shows, displayed size, duration, frame rate."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.foreign.size_headers import SizeHeaders
from reelweave.curate.frames.container.dolby_vision import without_base
from reelweave.curate.frames.container.side_data import side_data
from reelweave.curate.frames.decode.decoder import codec_with_alpha
from reelweave.curate.frames.picture import ShapeMeter
from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.loader.dataset.colour.transparency import OverBlack
from reelweave.loader.dataset.samples.frames.shown_frames import PacketFrames, has_variable_rate, times_of
from reelweave.loader.dataset.tars.media import FORMATS
from reelweave.loader.dataset.tars.orientation import orientation_of
from reelweave.loader.errors import refuse_shortage

PROBE_VERSION = 8
"""Revision of this code: higher when the same bytes give other values; tars probed by older code are read again."""

IMAGE_FPS = 25.0
"""A picture counts as one frame of a video of this rate, so that frames = seconds x rate holds for it too."""

_MAX_SIDE = 16384
_RATE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Media:
    """Media of a sample as decoders show it.

    Attributes:
        frames: Number of frames that are shown.
        fps: Average frame rate.
        height: Height in pixels, upright and with square pixels.
        width: Width in pixels, likewise.
        duration_s: frames / fps.
        audio: Codec of the first sound track, or "none".
        variable_rate: True if frames last unequally long, so that ``fps`` is only their mean.
        interlaced: True if a frame that was decoded is marked as two fields of different times.
        transparent: True if the first frame has a transparent pixel.
        cropped: True if the container states edges that players cut off; height and width are with them.
    """

    frames: int
    fps: float
    height: int
    width: int
    duration_s: float
    audio: str
    variable_rate: bool = False
    interlaced: bool = False
    transparent: bool = False
    cropped: bool = False


def probe(data: bytes | memoryview) -> Media:
    """Read all packets of a video or picture, and decode one frame; all frames where only these tell their number.

    Raises:
        SourceError: no container of ``reelweave.loader.dataset.tars.media`` can be read, no frame can be
            decoded, only Dolby Vision shows its colours, or fewer frames are there than the header promises.
    """
    if not data:
        raise SourceError("is empty")
    with open_video(io.BytesIO(data), containers=FORMATS) as (container, stream), _decoding():
        stated_data = side_data(stream)
        if (dolby_vision := stated_data.dolby_vision) and dolby_vision.fault:
            raise SourceError(dolby_vision.fault)
        packets, heads = PacketFrames(container, stream), SizeHeaders(stream.codec_context)
        times, frame = _demux(container, stream, packets, heads)
        if times.promised > (times.ticks if times.counts_ticks else times.packets):
            raise SourceError(
                f"is cut off: its header promises {times.promised} frames, {times.packets} are there"
            )
        told, tick_s = packets.told(), float(stream.time_base or 0)
        if told is not None and frame.pts != told.pts[0]:
            told = None  # frames at the beginning are lost
        height, width = _shown_size(frame, stream.sample_aspect_ratio)
        audio = _codec(container.streams.audio[0]) if container.streams.audio else "none"
        interlaced, transparent = bool(frame.interlaced_frame), OverBlack().is_transparent(frame)
        is_picture, stated = container.format.name.endswith("_pipe"), stream.average_rate
    decoded, combed = _decoded_stamps(data) if told is None or heads.change else ([], False)
    stamps = decoded if told is None else told.pts.tolist()
    times_s = times_of(stamps, tick_s)
    fps = IMAGE_FPS if is_picture else times.rate(stated, len(stamps))
    return Media(
        len(stamps),
        fps,
        height,
        width,
        len(stamps) / fps,
        audio,
        variable_rate=times_s is not None and has_variable_rate(times_s),
        interlaced=interlaced or combed,
        transparent=transparent,
        cropped=stated_data.crop is not None,
    )


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise SourceError(f"cannot be decoded: {getattr(error, 'strerror', None) or error}") from error


def _decoded_stamps(data: bytes | memoryview) -> tuple[list[int | None], bool]:
    """Return the time stamp of each frame, all of which are decoded, and whether any is interlaced.

    Raises:
        SourceError: There is none, or they change their shape, of which an index has one.
    """
    with open_video(io.BytesIO(data), containers=FORMATS) as (container, stream), _decoding():
        meter = ShapeMeter(
            stream, stream.codec_context, ProbeConfig(max_width=_MAX_SIDE, max_height=_MAX_SIDE)
        )
        shown = (frame for packet in container.demux(stream) for frame in meter.decode(packet))
        found = [(frame.pts, bool(frame.interlaced_frame)) for frame in shown]
    if not found:
        raise SourceError("has no frame that can be decoded")
    old = meter.shapes[0]
    for new in meter.shapes:  # of colours each frame is decoded by its own
        if (new.width, new.height) != (old.width, old.height):
            raise SourceError(
                f"changes its picture {old.change_to(new)} at frame {new.first}; `reelweave curate` makes clips of each"
            )
    return [pts for pts, _ in found], any(interlaced for _, interlaced in found)


@dataclass
class _Times:
    """Number of packets, and the span they cover in seconds.

    Attributes:
        promised: Frames by the header.
        packets: Packets with content.
        first_s: Earliest time of a packet.
        last_s: Latest end of a packet.
        counts_ticks: True for AVI, which has no times of display and promises ticks; a frame may take several.
        ticks: End of the last packet in coding order, in ticks.
        coded: Time of the last packet in coding order, in ticks.
        discarded: True if an edit list cuts off packets.
    """

    promised: int
    packets: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    counts_ticks: bool = False
    ticks: int = 0
    coded: int = 0
    discarded: bool = False

    def add(self, packet: "Packet[VideoStream]") -> None:
        self.packets += 1
        if packet.is_discard:
            self.discarded = True
            return
        begin, lasting = packet.pts, packet.duration or 0
        if self.counts_ticks:
            begin, lasting = packet.dts, max(lasting, (packet.dts or 0) - self.coded)
            self.coded, self.ticks = packet.dts or 0, (packet.dts or 0) + lasting
        if begin is not None and packet.time_base is not None:
            begin_s = float(begin * packet.time_base)
            end_s = begin_s + float(lasting * packet.time_base)
            self.first_s = begin_s if self.first_s is None else min(self.first_s, begin_s)
            self.last_s = max(self.last_s, end_s)

    def rate(self, stated: Fraction | None, frames: int) -> float:
        """Return the stated rate where the time stamps agree with it, else shown frames over the span they cover."""
        span_s = 0.0 if self.first_s is None else self.last_s - self.first_s
        counted = frames / span_s if span_s > 0 else 0.0
        if self.discarded:  # the stated rate counts frames that an edit list cuts off
            return counted or IMAGE_FPS
        if stated and (not counted or abs(float(stated) / counted - 1) <= _RATE_TOLERANCE):
            return float(stated)
        return counted or IMAGE_FPS


def _demux(
    container: InputContainer, stream: VideoStream, packets: PacketFrames, heads: SizeHeaders
) -> tuple[_Times, VideoFrame]:
    codec = codec_with_alpha(stream)
    times, frame = _Times(stream.frames, counts_ticks=container.format.name == "avi"), None
    for packet in container.demux(stream):
        if packet.size:
            times.add(packet)
            heads.add(packet)
        packets.add(packet)
        if frame is None:
            if fault := without_base(packet):
                raise SourceError(fault)
            frame = next(iter(codec.decode(packet)), None)
    if frame is None:
        raise SourceError("has no frame that can be decoded")
    return times, frame


def _shown_size(frame: VideoFrame, pixel_aspect: Fraction | None) -> tuple[int, int]:
    height, width = frame.height, frame.width
    if pixel_aspect:
        width = max(1, round(width * pixel_aspect))
    if orientation_of(frame).transposed:
        height, width = width, height
    if max(height, width) > _MAX_SIDE:
        raise SourceError(f"is shown with {width}x{height} pixels; at most {_MAX_SIDE} a side are read")
    return height, width


def _codec(stream: object) -> str:
    context = getattr(stream, "codec_context", None)  # None where FFmpeg knows no decoder
    return "unknown" if context is None else str(context.name)
