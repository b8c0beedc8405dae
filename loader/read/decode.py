"""Decoding of a clip's bytes to the pixels of its bucket.

Two decoders give nearly the same pixels: PyAV, and decord, which is slower and 1 to 2 levels darker at most
sizes. Both convert and resize with swscale's bilinear filter, which is antialiased when it shrinks; decord
offers no other. They use the clip's own colour matrix, BT.601 by default. PyAV reads all clips that are not
8-bit SDR: deep samples are rounded, and PQ and HLG mapped to SDR by the formula of curation. Neither decoder
detects all damage, and decord returns grey frames for some damaged bytes, so callers compare checksums first.
"""

import io
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from loader.base.arrays import Places
from loader.dataset.tars.media import FORMATS
from loader.dataset.tars.orientation import orientation_of
from loader.errors import RunError, refuse_shortage

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

Pixels = NDArray[np.uint8]
Decoder = Callable[[bytes | memoryview, Places, Pixels], None]
DecoderName = Literal["pyav", "decord"]

_DRAWN_AT_ONCE = 16
"""Columns that swscale converts at once without resizing."""
_MP4 = b"ftyp"  # bytes 4 to 8 of MP4 and MOV


def decode(
    clip: bytes | memoryview,
    numbers: Places,
    video_CTHW: Pixels,
    upright: bool = True,
    decoder: DecoderName = "pyav",
) -> None:
    """Decode frames of a clip as RGB, resized to cover the target size and cropped at the centre.

    Args:
        clip: a video file or an image.
        numbers: int64 [T], rising, numbers of the frames in display order.
        video_CTHW: output, [3, T, height, width]; undefined after an error.
        upright: True if the pixels are known to be upright and square; others are rotated and stretched.
        decoder: decoder of upright MP4; decord only if installed.

    Raises:
        RunError: the clip is undecodable, or has too few frames.
    """
    by_decord = decoder == "decord" and upright and bytes(clip[4:8]) == _MP4 and _has_decord()
    (decode_with_decord if by_decord else decode_with_pyav)(clip, numbers, video_CTHW)


def decode_with_decord(clip: bytes | memoryview, numbers: Places, video_CTHW: Pixels) -> None:
    """Decode an upright clip with decord, see `decode`; deep and HDR clips with PyAV."""
    frames_THWC = _by_decord(clip, numbers, video_CTHW)
    if frames_THWC is None:
        decode_with_pyav(clip, numbers, video_CTHW)
    else:
        np.copyto(video_CTHW, _centre(frames_THWC.transpose(3, 0, 1, 2), video_CTHW))


def _by_decord(clip: bytes | memoryview, numbers: Places, video_CTHW: Pixels) -> Pixels | None:
    """Return the frames [T, height, width, 3] that cover the target, or None for clips that are not 8-bit SDR."""
    import av
    import decord

    from loader.dataset.colour import hdr

    last = int(numbers[-1])
    try:
        # decord needs a decoded frame for a clip's size, the container does not.
        with _opened(clip) as container:
            own = container.streams.video[0]
            coded = own.codec_context
            deep = coded.format is not None and coded.format.components[0].bits > 8
            if deep or coded.color_trc in (hdr.PQ, hdr.HLG):
                return None
            height, width = _cover(own.height, own.width, *video_CTHW.shape[2:])
        # Clips are decoded in parallel, so one clip needs one thread.
        reader = decord.VideoReader(
            io.BytesIO(clip), ctx=decord.cpu(0), num_threads=1, height=height, width=width
        )
        if len(reader) <= last:
            raise _too_short(len(reader), last)
        if numbers[0] and len(reader.get_key_indices()) > 1:
            # decord's seek returns wrong frames near the keyframes of open GOPs.
            times = np.bincount(numbers, minlength=last + 1)
            frames = ((shown, reader.next()) for shown in times.tolist())
            return np.stack([frame.asnumpy() for shown, frame in frames for _ in range(shown)])
        return np.asarray(reader.get_batch(numbers.tolist()).asnumpy())
    except (av.FFmpegError, decord.DECORDError, RuntimeError, IndexError, StopIteration) as error:
        raise _undecodable(error) from error


def decode_with_pyav(clip: bytes | memoryview, numbers: Places, video_CTHW: Pixels) -> None:
    """Decode with PyAV, see `decode`; seek to the keyframe before the first frame."""
    import av

    filled, last = 0, int(numbers[-1])
    drawer = _Drawer()
    try:
        with _opened(clip) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            stamps = sorted(
                (packet.pts, packet.is_keyframe)
                for packet in container.demux(stream)
                if packet.pts is not None
            )
            if len(stamps) <= last:
                raise _too_short(len(stamps), last)
            wanted = [stamps[number][0] for number in numbers.tolist()]
            container.seek(
                max((pts for pts, is_key in stamps[: int(numbers[0]) + 1] if is_key), default=stamps[0][0]),
                stream=stream,
            )
            for frame in container.decode(stream):
                if frame.pts is None or frame.pts < wanted[filled]:
                    continue
                # At a higher frame rate a frame repeats.
                behind = bisect_right(wanted, frame.pts)
                aspect = float(stream.sample_aspect_ratio or 1)
                drawer.draw(frame, aspect, video_CTHW[:, filled:behind])
                filled = behind
                if filled == len(wanted):
                    return
    except (av.FFmpegError, IndexError) as error:
        raise _undecodable(error) from error
    raise _too_short(filled, last)


class _Drawer:
    """Drawing of one clip's frames; tables of swscale are kept between them."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        from loader.dataset.colour.sdr import SdrConverter, is_hdr

        self._scaler, self._shrinker = VideoReformatter(), VideoReformatter()
        self._sdr, self._is_hdr = SdrConverter(), is_hdr

    def draw(self, frame: "VideoFrame", aspect: float, video_CTHW: Pixels) -> None:
        """Draw a frame into all of the given places."""
        turn = orientation_of(frame)
        shown = (frame.height, max(1, round(frame.width * aspect)))
        covering = _cover(*(shown[::-1] if turn.transposed else shown), *video_CTHW.shape[2:])
        height, width = covering[::-1] if turn.transposed else covering
        frame = self._of_sdr(frame, height, width)
        kept = (height, width) == (frame.height, frame.width)
        if kept and 0 < width % _DRAWN_AT_ONCE <= _DRAWN_AT_ONCE // 2:
            # swscale's own path from subsampled YUV to planes leaves these last columns as the memory was.
            frame = self._scaler.reformat(
                frame, width, height, "yuv444p", interpolation="BILINEAR", threads=1
            )
        # Not rgb24: its conversion is slower, and at even widths 1 to 2 levels too dark with coarser colour.
        image = self._scaler.reformat(frame, width, height, "gbrp", interpolation="BILINEAR", threads=1)
        green, blue, red = image.planes
        for channel_THW, plane in zip(video_CTHW, (red, green, blue), strict=True):
            padded_HW = np.frombuffer(memoryview(plane), np.uint8).reshape(height, plane.line_size)
            channel_THW[:] = _centre(turn.of(padded_HW[:, :width]), channel_THW)

    def _of_sdr(self, frame: "VideoFrame", height: int, width: int) -> "VideoFrame":
        """Return the SDR picture of a frame; HDR is shrunk first, since mapping costs more than decoding."""
        if self._is_hdr(frame) and height * width < frame.height * frame.width:
            kind = frame.format.name
            frame = self._shrinker.reformat(frame, width, height, kind, interpolation="BILINEAR", threads=1)
        return self._sdr(frame)


def _opened(clip: bytes | memoryview) -> "InputContainer":
    import av

    # The whitelist excludes playlists, through which FFmpeg would open arbitrary files.
    return av.open(
        io.BytesIO(clip), mode="r", metadata_errors="replace", options={"format_whitelist": FORMATS}
    )


@cache
def _has_decord() -> bool:
    try:
        import decord  # noqa: F401 - asked only whether it is there
    except ImportError:
        return False
    return True


def _cover(own_height: int, own_width: int, height: int, width: int) -> tuple[int, int]:
    """Return the smallest size of the frame's aspect ratio that covers the target size."""
    scale = max(height / own_height, width / own_width)
    return max(height, round(own_height * scale)), max(width, round(own_width * scale))


def _centre(pixels: Pixels, wanted: Pixels) -> Pixels:
    """Return the centre of pixels [..., height, width], in the size of `wanted`."""
    top, left = ((have - want) // 2 for have, want in zip(pixels.shape[-2:], wanted.shape[-2:], strict=True))
    return pixels[..., top : top + wanted.shape[-2], left : left + wanted.shape[-1]]


def _too_short(frames: int, last: int) -> RunError:
    return RunError(f"the clip has {frames} frames; frame {last}, counted from 0, was asked for")


def _undecodable(error: Exception) -> RunError:
    refuse_shortage(error, "decode a clip")
    what, *_ = *str(error).splitlines(), type(error).__name__
    return RunError(f"the clip cannot be decoded: {what}")
