"""What cutting gives: a clip, or the reason why there is none."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

from av.video.frame import VideoFrame

from curate.frames.picture import Geometry
from curate.shots.spans import Span


@dataclass(frozen=True)
class Clip:
    """One clip.

    Attributes:
        span: what it shows.
        data: the bytes of its .mp4 file.
        frames: its frame count, verified.
        rate: frames per second.
        geometry: size in pixels.
        codec_mode: whether its pictures were encoded, or copied from the source.
        audio: its sound track: "none", "copy:" and the codec for packets of the source, or the codec it was
            encoded with.
        audio_fault: why the source's sound is not in the clip, or None.
    """

    span: Span
    data: bytes
    frames: int
    rate: Fraction
    geometry: Geometry
    codec_mode: Literal["encode", "copy"] = "encode"
    audio: str = "none"
    audio_fault: str | None = None

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class FailedClip:
    """A span that could not become a clip, and why."""

    span: Span
    reason: str


class CutError(Exception):
    """Why one span gives no clip, in words; never leaves ``curate.cut``."""


class Encoded(Protocol):
    """The spans whose pictures were encoded already, each an MP4 file of pictures only, index last."""

    def __contains__(self, span: object) -> bool:
        """Whether a span is one of them."""

    def get(self, span: Span, /) -> bytes | None:
        """The file of one of them, else None."""


Observe = Callable[[Span, int, VideoFrame, VideoFrame], None]
"""Called with (span, number in shown order, decoded frame, finished picture) of every frame that is cut.

The pictures are the cutter's: look at them and do not write into them or keep them."""
