"""Encoding of pictures as H.264 by x264, or NVENC where the machine has it, and of 10-bit pictures as HEVC by x265."""

import contextlib
import functools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.mp4 import HEVC_TAG, Mp4
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.colour import hdr
from reelweave.loader.dataset.colour.light import Light
from reelweave.loader.dataset.colour.sdr import is_hdr
from reelweave.loader.errors import refuse_shortage

TOO_LARGE = "the clips of its source are too large for it (probe.max_growth)"
X264, X265, NVENC = "libx264", "libx265", "h264_nvenc"
# The information message names the processor. Closed groups of pictures let decoding begin at every key frame.
_X265_OPTIONS = ("info=0", "log-level=none", "frame-threads=1", "open-gop=0")
_CHROMATICITY, _LUMINANCE = 50_000, 10_000
_PROBE_SIZE, _PROBE_FRAMES = Geometry(256, 256), 4


class ClipEncoder:
    """Encoder of one clip's pictures.

    Args:
        codec: Name of the encoder in FFmpeg.
        size: Size and depth of the pictures.
        rate: Frames per second.
        config: Encoder settings.
        max_bytes: Maximum size of the file.

    Raises:
        CutError: The encoder cannot be opened.
    """

    @charged("encode")
    def __init__(
        self, codec: str, size: Geometry, rate: Fraction, config: CutConfig, max_bytes: float = math.inf
    ) -> None:
        try:
            self._file = Mp4()
            stream = self._file.container.add_stream(codec, rate=rate)
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
            raise CutError(f"the encoder {codec} cannot be opened: {error}") from error
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = size.width, size.height
        stream.pix_fmt = size.pixel_format
        stream.time_base = stream.codec_context.time_base = self._time_base = 1 / rate
        stream.codec_context.thread_count = config.threads
        stream.codec_context.gop_size = config.keyframe_every
        stream.options = options(codec, config, size.light)
        if codec == X265:
            stream.codec_context.codec_tag = HEVC_TAG
        self._codec, self._stream, self._written, self._deep = codec, stream, 0, size.bits > 8
        self._left_bytes = max_bytes

    @charged("encode")
    def show(self, picture: VideoFrame, times: int) -> None:
        """Encode one picture for the next ``times`` frames of the clip; the picture's fields are restored.

        Raises:
            CutError: The picture could not be encoded, or the clip has become too large.
        """
        context, stream = self._stream.codec_context, self._stream
        before = picture.pts, picture.time_base or self._time_base, picture.pict_type
        try:
            # The first picture's colours are the stream's; later ones cannot change between HDR and SDR.
            if self._written == 0:
                context.colorspace, context.color_range = picture.colorspace, picture.color_range
                context.color_primaries, context.color_trc = picture.color_primaries, picture.color_trc
            elif self._deep and is_hdr(picture) != (context.color_trc in (hdr.PQ, hdr.HLG)):
                raise CutError("it changes between HDR and SDR")
            # A picture that is shown for several frames is encoded for each: the rate is constant.
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
            refuse_shortage(error)
            raise CutError(f"could not be encoded with {self._codec}: {error}") from error
        finally:
            picture.pts, picture.time_base, picture.pict_type = before

    @charged("encode")
    def finish(self) -> bytes:
        """Return the MP4 file, with its index last.

        Raises:
            CutError: The clip could not be encoded.
        """
        try:
            self._file.container.mux(self._stream.encode(None))
            return self._file.close()
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
            raise CutError(f"could not be encoded with {self._codec}: {error}") from error

    def abandon(self) -> None:
        """Close the file of a failed clip."""
        with contextlib.suppress(av.error.FFmpegError, ValueError):
            self._file.close()


def options(codec: str, config: CutConfig, light: Light | None = None) -> dict[str, object]:
    """Return FFmpeg's options for an encoder.

    Args:
        codec: Name of the encoder in FFmpeg.
        config: Encoder settings.
        light: Static HDR metadata for the stream.
    """
    if codec == NVENC:
        return {"rc": "vbr", "cq": str(config.crf), "b": "0", "preset": "p4", "tune": "hq", "forced-idr": "1"}
    if codec == X265:
        x265_params = ":".join([*_X265_OPTIONS, *_threads_of_x265(config.threads), *_light_of_x265(light)])
        return {"crf": str(config.crf), "preset": config.preset, "x265-params": x265_params}
    # x264's macroblock tree reads uninitialised memory on CPUs with AVX-512, which changes the bytes from run to run.
    return {"crf": str(config.crf), "preset": config.preset, "x264-params": "mbtree=0"}


def _threads_of_x265(threads: int) -> tuple[str, ...]:
    return ("pools=none", "wpp=0") if threads == 1 else (f"pools={threads}",)


def _light_of_x265(light: Light | None) -> Iterator[str]:
    """Yield the options that write static HDR metadata, in the units of SMPTE ST 2086."""
    if light is None:
        return
    if light.primaries is not None and light.nits is not None:
        red, green, blue, white = (
            f"({round(x * _CHROMATICITY)},{round(y * _CHROMATICITY)})" for x, y in light.primaries
        )
        low, high = (round(nits * _LUMINANCE) for nits in light.nits)
        yield f"master-display=G{green}B{blue}R{red}WP{white}L({high},{low})"
    if light.levels is not None:
        yield "max-cll={},{}".format(*light.levels)


def codec_name(encoder: Literal["x264", "nvenc", "auto"], bits: int = 8) -> str:
    """Return the encoder's name in FFmpeg.

    Args:
        encoder: Encoder of 8-bit pictures.
        bits: Bits per sample.

    Raises:
        CutError: NVENC is configured and does not work here.
    """
    if bits > 8:
        return X265
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
