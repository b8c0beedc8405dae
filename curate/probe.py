"""What a source says of itself, before any frame is decoded, and the limits it must keep."""

import re
from dataclasses import dataclass
from fractions import Fraction

from av.container import InputContainer
from av.video.stream import VideoStream
from pydantic import BaseModel, Field

from curate.source import SourceError

_PROMISE_TAG = re.compile(r"^(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class ProbeConfig(BaseModel, frozen=True, extra="forbid"):
    """Limits on what one source may claim; they guard against decompression bombs."""

    max_width: int = Field(8192, gt=0, description="pixels; wider sources fail")
    max_height: int = Field(8192, gt=0, description="pixels; higher sources fail")
    max_duration_s: float = Field(6 * 3600, gt=0, description="sources that claim to be longer fail")
    max_frames: int = Field(2_000_000, gt=0, description="sources that hold more frames fail")


@dataclass(frozen=True)
class Probe:
    """A source's own description, which decoding may prove wrong.

    Attributes:
        container: FFmpeg's name of the container format.
        codec: of the picture stream.
        pixel_format: as stored, or "" when the stream does not say.
        width: as stored, before rotation and pixel aspect.
        height: as stored.
        rate: frames per second as the container states it, or None.
        promised_s: duration the container claims for the picture stream, or None.
        audio_codec: of the first audio stream, or None.
        metadata: textual tags of container and stream, by lower-case name.
    """

    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    rate: Fraction | None
    promised_s: float | None
    audio_codec: str | None
    metadata: dict[str, str]


def probe(container: InputContainer, stream: VideoStream, config: ProbeConfig) -> Probe:
    """Describes an opened source.

    Raises:
        SourceError: it breaks a limit.
    """
    context = stream.codec_context
    audio = container.streams.audio
    found = Probe(
        container=container.format.name,
        codec=context.name,
        pixel_format=context.pix_fmt or "",
        width=context.width,
        height=context.height,
        rate=stream.average_rate or stream.base_rate,
        promised_s=_promised_s(container, stream),
        audio_codec=audio[0].codec_context.name if audio else None,
        metadata={
            name.lower(): value for name, value in {**stream.metadata, **container.metadata}.items() if value
        },
    )
    if found.width > config.max_width or found.height > config.max_height:
        raise SourceError(
            f"is {found.width}x{found.height}; probe.max_width and probe.max_height allow"
            f" {config.max_width}x{config.max_height}"
        )
    if found.promised_s is not None and found.promised_s > config.max_duration_s:
        raise SourceError(
            f"lasts {found.promised_s:.0f} s; probe.max_duration_s allows {config.max_duration_s:.0f}"
        )
    return found


def _promised_s(container: InputContainer, stream: VideoStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    if tag := _PROMISE_TAG.match(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = tag.groups()
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    # The container's duration covers its longest stream, which may be sound.
    if container.duration is not None and not container.streams.audio:
        return container.duration / 1_000_000
    return None
