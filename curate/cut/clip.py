"""Results of cutting: a clip, or the reason why there is none."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
from av.video.frame import VideoFrame

from reelweave.curate.cut.crop.crop import Crop
from reelweave.curate.filters.sample import Floats
from reelweave.curate.frames.picture import Geometry
from reelweave.curate.shots.spans import Span
from reelweave.loader.dataset.samples.copied_frames import CopiedFrames

CodecMode = Literal["encode", "copy", "smart"]


@dataclass(frozen=True)
class CutClip:
    """Encoded or copied clip, verified.

    Attributes:
        span: Span of the source in the clip.
        data: Bytes of the .mp4 file.
        frames: Number of frames, verified.
        rate: Frames per second.
        geometry: Size of the pictures in pixels.
        codec_mode: "encode" for encoded pictures, "copy" for copied packets, "smart" for both.
        audio: Sound track: "none", "copy:" and the codec for packets of the source, or the codec of encoded
            sound.
        audio_fault: Reason why the source's sound is not in the clip, or None.
        audio_remark: Words on what is lost of the sound that is kept, or why no sound is there; "" for nothing.
        remark: Words on the treatment of the pictures by ``cut.mode=smart``, or "".
        crop: Lines of its pictures that were cropped, or None.
        copied_frames: Which frames are copies; None with ``cut.mode=encode``, where none is.
        audio_dbfs: Loudness of the sound track, as `reelweave.curate.filters.sound.loudness_dbfs`; empty without one.
    """

    span: Span
    data: bytes
    frames: int
    rate: Fraction
    geometry: Geometry
    codec_mode: CodecMode = "encode"
    audio: str = "none"
    audio_fault: str | None = None
    audio_remark: str = ""
    remark: str = ""
    crop: Crop | None = None
    copied_frames: CopiedFrames | None = None
    audio_dbfs: Floats = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)

    @property
    def sha256(self) -> str:
        """Hex digest of the file's bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def cut_scores(self) -> dict[str, float]:
        """Scores that cutting alone tells: which of its frames are copies, and what was cropped."""
        parts = (part for part in (self.copied_frames, self.crop) if part is not None)
        return {name: value for part in parts for name, value in part.scores().items()}


@dataclass(frozen=True)
class FailedClip:
    """Span that could not become a clip, with the reason."""

    span: Span
    reason: str


class CutError(Exception):
    """Reason why one span gives no clip, in words; never leaves ``reelweave.curate.cut``."""


class EncodedSpans(Protocol):
    """Already encoded spans, each an MP4 file of pictures only, with its index last."""

    def __contains__(self, span: object) -> bool:
        """Return True for an encoded span."""

    def get(self, span: Span, /) -> bytes | None:
        """Return the file of an encoded span, else None."""


Observe = Callable[[Span, int, VideoFrame, VideoFrame], None]
"""Callback with (span, number in display order, decoded frame, finished picture) for every frame that is cut.

The pictures belong to the cutter: the callback must neither change nor keep them.
"""
