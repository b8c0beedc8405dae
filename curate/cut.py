"""Cutting spans out of a source as clips: H.264, constant frame rate, fast start, verified."""

import hashlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.picture import Finisher, Geometry, finisher
from curate.source import SourceError, open_video
from curate.spans import Span
from curate.timeline import Decoder, Timeline, source_frames


class CutConfig(BaseModel, frozen=True, extra="forbid"):
    """How clips are encoded."""

    crf: int = Field(20, ge=0, le=51, description="x264 constant rate factor; lower is better and larger")
    preset: str = Field("veryfast", pattern="^(ultrafast|superfast|veryfast|faster|fast|medium|slow|slower)$")
    keyframe_every: int = Field(48, gt=0, description="frames; closer key frames make random access cheaper")
    max_fps: float = Field(60.0, gt=0, description="highest rate chosen for a source of variable frame rate")
    threads: int = Field(1, gt=0, description="encoder threads; part of the output's bytes")


@dataclass(frozen=True)
class Clip:
    """One encoded clip.

    Attributes:
        span: what it shows.
        data: the bytes of its .mp4 file.
        frames: decoded frame count, verified.
        rate: frames per second.
        geometry: size in pixels.
    """

    span: Span
    data: bytes
    frames: int
    rate: Fraction
    geometry: Geometry

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class FailedClip:
    """A span that could not become a clip, and why."""

    span: Span
    reason: str


def cut(
    file: BinaryIO, timeline: Timeline, wanted: list[Span], size: Geometry, config: CutConfig
) -> Iterator[Clip | FailedClip]:
    """Decodes the source once and yields every wanted span, in order, as a clip or as failed.

    Only frames of one clip's encoder are in memory. The frames of a span are found by their number in shown
    order, which decoding gives the same way each time, so neither seeking nor time stamps can shift a cut. A
    clip that cannot be encoded does not cost its neighbours.

    Args:
        file: the source, opened for reading.
        timeline: of the same source.
        wanted: sorted, not overlapping.
        size: of finished pictures.
        config: of the encoder.
    """
    pending = list(reversed(wanted))
    if not pending:
        return
    file.seek(0)
    with (
        open_video(file) as (container, stream),
        finisher(size) as pictures,
        tempfile.TemporaryDirectory(prefix="reelweave-cut-") as scratch,
    ):
        path = Path(scratch) / "clip.mp4"
        encoder: _Encoder | None = None
        for number, frame in enumerate(Decoder(container, stream).frames()):
            span = pending[-1]
            if number < span.first:
                continue
            if encoder is None:
                slots = source_frames(timeline.times_s, span.first, span.last, timeline.rate)
                encoder = _Encoder(span, slots, timeline.rate, size, path, config)
            encoder.show(number, frame, pictures)
            if number == span.last - 1:
                pending.pop()
                yield encoder.finish()
                encoder = None
                if not pending:
                    return
        for span in reversed(pending):
            yield FailedClip(span, "its frames could not be decoded a second time")


class _Encoder:
    """Writes the frames of one span into a file, each as often as its slots ask; keeps its own fault."""

    def __init__(
        self,
        span: Span,
        slots: NDArray[np.int64],
        rate: Fraction,
        size: Geometry,
        path: Path,
        config: CutConfig,
    ) -> None:
        self._span, self._slots, self._rate, self._size, self._path = span, slots, rate, size, path
        self._written = 0
        self._fault: str | None = None
        # Bit-exact: no version or date in the file, so that the same input gives the same bytes.
        self._container = av.open(
            path, "w", format="mp4", options={"movflags": "+faststart", "fflags": "+bitexact"}
        )
        stream = self._container.add_stream("libx264", rate=rate)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = size.width, size.height
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = 1 / rate
        stream.codec_context.thread_count = config.threads
        stream.codec_context.gop_size = config.keyframe_every
        # x264's macroblock tree reads uninitialised memory on CPUs with AVX-512: other bytes on every run.
        stream.options = {"crf": str(config.crf), "preset": config.preset, "x264-params": "mbtree=0"}
        self._stream = stream

    def show(self, number: int, frame: VideoFrame, pictures: Finisher) -> None:
        """Encodes one decoded source frame for all slots that show it."""
        if self._fault is not None:
            return
        try:
            picture = pictures.finish(frame)
            if self._written == 0:
                context = self._stream.codec_context
                context.colorspace, context.color_range = picture.colorspace, picture.color_range
                context.color_primaries, context.color_trc = picture.color_primaries, picture.color_trc
            while self._written < len(self._slots) and self._slots[self._written] == number:
                picture.pts = self._written
                picture.time_base = 1 / self._rate
                picture.pict_type = 0
                self._container.mux(self._stream.encode(picture))
                self._written += 1
        except (av.error.FFmpegError, ValueError) as error:
            self._fault = f"could not be encoded: {error}"

    def finish(self) -> Clip | FailedClip:
        """Closes the file and decodes it whole: what the index promises of it is what a reader gets."""
        try:
            if self._fault is None:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            if self._fault is not None:
                return FailedClip(self._span, self._fault)
            data = self._path.read_bytes()
            with open_video(io.BytesIO(data)) as (container, stream):
                decoder = Decoder(container, stream)
                decoded = sum(1 for _ in decoder.frames())
                damage = decoder.damage()
        except (av.error.FFmpegError, ValueError, SourceError) as error:
            return FailedClip(self._span, f"could not be encoded: {error}")
        if damage or decoded != len(self._slots):
            return FailedClip(
                self._span, f"its clip decodes to {decoded} frames instead of {len(self._slots)}"
            )
        return Clip(self._span, data, decoded, self._rate, self._size)
