"""Header of a source, read before any frame is decoded, and the limits a source must keep."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO, Literal

from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from pydantic import Field

from reelweave.curate.frames.clocks.coding_times import is_timed
from reelweave.curate.frames.clocks.fragment_runs import fragments_until
from reelweave.curate.frames.clocks.packet_rate import packet_rate
from reelweave.curate.frames.container.cut_off import Promise, promise_of
from reelweave.curate.frames.container.edit_list import behind_edit
from reelweave.curate.frames.container.side_data import side_data
from reelweave.curate.frames.source import SourceError, read_first_packets
from reelweave.loader.dataset.colour import hdr
from reelweave.loader.settings import Settings

_PROGRESSIVE = 1  # AVFieldOrder: 0 unknown, 1 progressive, above interlaced
_STALE_S = 0.5
"""Seconds by which the duration of a track may exceed that of its file before it is one of another film."""
_LAP_S = 2**33 / 90_000
"""Seconds of a lap of the clock of TS and MPEG-PS, which FFmpeg adds to stamps that step back by more than a minute."""

_PROMISE_TAG = re.compile(r"^(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class ProbeConfig(Settings):
    """Limits of an accepted source, a guard against decompression bombs."""

    max_width: int = Field(8192, gt=0, description="maximum width of a source, pixels")
    max_height: int = Field(8192, gt=0, description="maximum height of a source, pixels")
    max_duration_s: float = Field(
        6 * 3600, gt=0, description="maximum duration of a source, by its header and by its frames, seconds"
    )
    max_frames: int = Field(2_000_000, gt=0, description="maximum number of frames of a source")
    max_bytes: int = Field(256 * 10**9, gt=0, description="maximum size of a source, bytes")
    max_decode_s: float = Field(
        4 * 3600.0, gt=0, description="maximum CPU time for decoding a source once, seconds"
    )
    max_pixels_per_byte: float = Field(
        3e5,
        gt=0,
        description="maximum pixels decoded, or encoded, per byte of a source; 20 billion pixels (10,000 frames of"
        " 1080p) are always allowed",
    )
    max_fill: float = Field(
        100.0,
        ge=1,
        description="maximum clip frames per frame of a source, where long frame durations are filled up; 1,000 frames"
        " are always allowed",
    )
    max_growth: float = Field(
        200.0,
        gt=0,
        description="maximum bytes of clips per byte of a source; 256 MiB are always allowed",
    )
    hdr: Literal["tonemap", "reject"] = Field(
        "tonemap",
        description="treatment of PQ and HLG sources; tonemap: convert to BT.709 SDR, and clips only where cut.max_bits"
        " is 8; reject: fail them",
    )
    interlaced: Literal["deinterlace", "keep", "reject"] = Field(
        "deinterlace",
        description="treatment of interlaced frames; deinterlace: one full picture per frame, and the own frames of"
        " telecined films; keep: leave the comb;"
        " reject: fail the source",
    )


@dataclass(frozen=True)
class Probe:
    """Header of a source, which decoding may prove wrong.

    Attributes:
        container: Name of the container format in FFmpeg.
        codec: Name of the video codec in FFmpeg.
        pixel_format: Stored pixel format, or "" when the stream does not say.
        width: Stored width, pixels, before rotation and pixel aspect.
        height: Stored height, pixels.
        rate: Frames per second in the header, or None.
        packet_fps: Frames per second of the first packets where they contradict the header, or None.
        promised_s: Duration of the video stream in the header, seconds, or None.
        pixel_aspect: Width of a stored pixel over its height, or None when unknown; the container overrides
            the codec.
        interlaced: True when the header says so; only the frames are certain.
        metadata: Textual tags of container and stream, by lower-case name.
    """

    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    rate: Fraction | None
    packet_fps: float | None
    promised_s: float | None
    pixel_aspect: Fraction | None
    interlaced: bool
    metadata: dict[str, str]

    @property
    def fps(self) -> float:
        """Frames per second before any is decoded: of the first packets, of the header, or 25."""
        return self.packet_fps or float(self.rate or 25)


def probe(
    container: InputContainer, stream: VideoStream, config: ProbeConfig, file: BinaryIO | None = None
) -> Probe:
    """Read the header of an opened source.

    Args:
        container: Opened container.
        stream: Its stream of pictures.
        config: Limits that the source must keep.
        file: The file that it reads, where the header's rate is compared with the first packets; it is left where it
            was.

    Raises:
        SourceError: The source breaks a limit, or only Dolby Vision shows its colours.
    """
    # What no decoding could make right.
    if (dolby_vision := side_data(stream).dolby_vision) and dolby_vision.fault:
        raise SourceError(dolby_vision.fault)
    if container.size > config.max_bytes:
        raise SourceError(f"has {container.size} bytes; probe.max_bytes allows {config.max_bytes}")
    # A stated rate is compared with the packets, unless the container counts frames itself.
    context, rate = stream.codec_context, _stated_rate(container, stream)
    is_interlaced = context.field_order > _PROGRESSIVE
    packet_fps: float | None = None
    if file is not None and rate and not _counts_frames(container):
        first = read_first_packets(file, stream, config.max_width * config.max_height)
        packet_fps = packet_rate(first, float(rate), is_interlaced)
    header = Probe(
        container=container.format.name,
        codec=context.name,
        pixel_format=context.pix_fmt or "",
        width=context.width,
        height=context.height,
        rate=rate,
        packet_fps=packet_fps,
        promised_s=_promised_s(container, stream, file),
        pixel_aspect=stream.sample_aspect_ratio or None,
        interlaced=is_interlaced,
        metadata={
            name.lower(): value for name, value in {**stream.metadata, **container.metadata}.items() if value
        },
    )
    # Limits, also of the picture with square pixels.
    check_size(header.width, header.height, config)
    if header.pixel_aspect is not None:
        check_size(round(header.width * header.pixel_aspect), header.height, config)
    if header.promised_s is not None and header.promised_s > config.max_duration_s:
        raise SourceError(
            f"lasts {header.promised_s:.0f} s; probe.max_duration_s allows {config.max_duration_s:.0f}"
        )
    return header


def _counts_frames(container: InputContainer) -> bool:
    """Return whether packets say no more of the rate: MP4 counts its frames, and raw streams have no times."""
    return "mp4" in container.format.name or not is_timed(container)


def _stated_rate(container: InputContainer, stream: VideoStream) -> Fraction | None:
    """Return the frame rate in the header; of raw streams, which hold no times, that of the codec's own header.

    Raises:
        SourceError: a raw stream states none, where FFmpeg would assume 25 frames per second.
    """
    if is_timed(container):
        return stream.average_rate or stream.base_rate
    if not stream.codec_context.framerate:
        raise SourceError(
            "is a raw stream without times or a frame rate; give it a container by"
            " `ffmpeg -framerate RATE -i FILE -c copy FILE.mkv`"
        )
    return stream.guessed_rate


def too_long(limits: ProbeConfig) -> SourceError:
    """Return the error for a source that lasts too long."""
    return SourceError(f"lasts more than probe.max_duration_s = {limits.max_duration_s:.0f}")


def check_size(width: int, height: int, config: ProbeConfig) -> None:
    """Raise `SourceError` for a picture above the size limits."""
    if width > config.max_width or height > config.max_height:
        raise SourceError(
            f"is {width}x{height}; probe.max_width and probe.max_height allow"
            f" {config.max_width}x{config.max_height}"
        )


def check_frame(frame: VideoFrame, config: ProbeConfig) -> None:
    """Raise `SourceError` for a decoded frame that breaks a limit, whatever the header said."""
    check_size(frame.width, frame.height, config)
    if config.hdr == "reject" and frame.color_trc in (hdr.PQ, hdr.HLG):
        raise SourceError("is HDR (PQ or HLG); probe.hdr is set to reject it")
    if config.interlaced == "reject" and frame.interlaced_frame:
        raise SourceError("is interlaced; probe.interlaced is set to reject it")


def _promised_s(container: InputContainer, stream: VideoStream, file: BinaryIO | None) -> float | None:
    promise = None if file is None else _promise_of(file)
    cut_off_s = promise.seconds if promise is not None and promise.is_cut_off else None
    if cut_off_s is not None and container.format.name == "avi":  # FFmpeg counts what is there
        return cut_off_s
    # Matroska states no duration of a stream but by its tag: FFmpeg gives a single picture that of the film.
    is_own = "matroska" not in container.format.name or "DURATION" not in stream.metadata
    if container.format.name in ("mpegts", "mpeg") and (container.duration or 0) / 1e6 > _LAP_S / 2:
        return None
    if is_own and stream.duration is not None and stream.time_base is not None:
        behind = None if file is None else behind_edit(container, file, stream.id)
        until = None if file is None else fragments_until(container, file, stream.id)
        lasts = min(ticks for ticks in (stream.duration, behind, until) if ticks is not None)
        return float(lasts * stream.time_base) - _begins_late_s(container, stream)
    if tag := _PROMISE_TAG.match(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = tag.groups()
        # FFmpeg tells the end of the stream, mkvmerge, which adds statistics, its duration.
        lasts = any(name.startswith("_STATISTICS") for name in stream.metadata)
        begin_s = 0.0 if lasts else float((stream.start_time or 0) * (stream.time_base or 0))
        tagged_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        # Tools that cut films leave tags of the whole one; no track lasts longer than all of them.
        if promise is None or tagged_s <= promise.seconds + _STALE_S:
            return tagged_s - begin_s
    if cut_off_s is not None:
        return cut_off_s
    # The container's duration covers its longest stream, which may be sound.
    if container.duration is not None and not container.streams.audio:
        return container.duration / 1_000_000
    return None


def _begins_late_s(container: InputContainer, stream: VideoStream) -> float:
    """Return the first time of coding, in seconds, where FFmpeg gives the end of the clock as the duration.

    It does of MP4 in fragments, of which the index counts no frames; live streams begin hours late, or at Unix time.
    """
    start, duration = stream.start_time or 0, stream.duration or 0
    if "mp4" not in container.format.name or stream.frames or not 0 < start < duration:
        return 0.0
    rate = stream.average_rate or stream.base_rate
    moved_s = stream.codec_context.reorder_depth / float(rate) if rate else 0.0
    return max(0.0, float(start * (stream.time_base or 0)) - moved_s)


def _promise_of(file: BinaryIO) -> Promise | None:
    """Return what a file promises; FFmpeg relies on its position."""
    position = file.tell()
    try:
        return promise_of(file)
    finally:
        file.seek(position)
