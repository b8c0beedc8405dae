"""Encoding of pictures as H.264: x264, or NVENC where the machine has it."""

import contextlib
import functools
import math
from fractions import Fraction
from typing import Literal

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from curate.cut.clip import CutError
from curate.cut.config import CutConfig
from curate.cut.mp4 import Mp4
from curate.frames.picture import Geometry

TOO_LARGE = "the clips of its source are too large for it (probe.max_growth)"
X264, NVENC = "libx264", "h264_nvenc"
_PROBE_SIZE, _PROBE_FRAMES = Geometry(256, 256), 4


class ClipEncoder:
    """Encoder of one clip's pictures.

    Args:
        codec: Name of the encoder in FFmpeg.
        size: Size of the pictures.
        rate: Frames per second.
        config: Encoder settings.
        max_bytes: Maximum size of the file.

    Raises:
        CutError: The encoder cannot be opened.
    """

    def __init__(
        self, codec: str, size: Geometry, rate: Fraction, config: CutConfig, max_bytes: float = math.inf
    ) -> None:
        try:
            self._file = Mp4()
            stream = self._file.container.add_stream(codec, rate=rate)
        except (av.error.FFmpegError, ValueError) as error:
            raise CutError(f"the encoder {codec} cannot be opened: {error}") from error
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = size.width, size.height
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = self._time_base = 1 / rate
        stream.codec_context.thread_count = config.threads
        stream.codec_context.gop_size = config.keyframe_every
        stream.options = options(codec, config)
        self._codec, self._stream, self._written = codec, stream, 0
        self._left_bytes = max_bytes

    def show(self, picture: VideoFrame, times: int) -> None:
        """Encode one picture for the next ``times`` frames of the clip; the picture's fields are restored.

        Raises:
            CutError: The picture could not be encoded, or the clip has become too large.
        """
        context, stream = self._stream.codec_context, self._stream
        before = picture.pts, picture.time_base or self._time_base, picture.pict_type
        try:
            if self._written == 0:
                context.colorspace, context.color_range = picture.colorspace, picture.color_range
                context.color_primaries, context.color_trc = picture.color_primaries, picture.color_trc
            picture.time_base, picture.pict_type = self._time_base, 0
            for _ in range(times):
                picture.pts = self._written
                packets = stream.encode(picture)
                self._file.container.mux(packets)
                self._written += 1
                self._left_bytes -= sum(packet.size for packet in packets)
                if self._left_bytes < 0:
                    raise CutError(TOO_LARGE)
        except (av.error.FFmpegError, ValueError) as error:
            raise CutError(f"could not be encoded with {self._codec}: {error}") from error
        finally:
            picture.pts, picture.time_base, picture.pict_type = before

    def finish(self) -> bytes:
        """Return the MP4 file, with its index last.

        Raises:
            CutError: The clip could not be encoded.
        """
        try:
            self._file.container.mux(self._stream.encode(None))
            return self._file.close()
        except (av.error.FFmpegError, ValueError) as error:
            raise CutError(f"could not be encoded with {self._codec}: {error}") from error

    def abandon(self) -> None:
        """Close the file of a failed clip."""
        with contextlib.suppress(av.error.FFmpegError, ValueError):
            self._file.close()


def options(codec: str, config: CutConfig) -> dict[str, object]:
    """Return FFmpeg's options for an encoder."""
    if codec == NVENC:
        return {"rc": "vbr", "cq": str(config.crf), "b": "0", "preset": "p4", "tune": "hq", "forced-idr": "1"}
    # x264's macroblock tree reads uninitialised memory on CPUs with AVX-512, which changes the bytes from run to run.
    return {"crf": str(config.crf), "preset": config.preset, "x264-params": "mbtree=0"}


def choose(encoder: Literal["x264", "nvenc", "auto"]) -> str:
    """Return the encoder's name in FFmpeg.

    Raises:
        CutError: NVENC is configured and does not work here.
    """
    if encoder == "x264":
        return X264
    fault = nvenc_fault()
    if fault is None:
        return NVENC
    if encoder == "nvenc":
        raise CutError(f"{NVENC} does not work on this machine ({fault}); set cut.encoder=x264 or auto")
    return X264


@functools.lru_cache(maxsize=1)
def nvenc_fault() -> str | None:
    """Return why NVENC does not work here, or None; tested by encoding a few frames, once per process.

    A driver and a GPU are not enough: data centre GPUs such as A100 and H100 have no encoder.
    """
    picture = VideoFrame.from_ndarray(
        np.full((_PROBE_SIZE.height * 3 // 2, _PROBE_SIZE.width), 128, np.uint8), "yuv420p"
    )
    encoder = None
    try:
        encoder = ClipEncoder(NVENC, _PROBE_SIZE, Fraction(25), CutConfig())
        encoder.show(picture, _PROBE_FRAMES)
        encoder.finish()
    except CutError as error:
        if encoder is not None:
            encoder.abandon()
        return str(error)
    return None
