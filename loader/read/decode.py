"""Decoding of a clip's bytes to the pixels of its bucket.

Two decoders give nearly the same pixels: PyAV, and decord, which is slower and 1 to 2 levels darker at most
sizes. Both convert and resize with swscale's bilinear filter, which is antialiased when it shrinks; decord
offers no other. They use the clip's own colour matrix, BT.601 by default. PyAV reads all clips that are not
8-bit SDR: deep samples are rounded, and PQ and HLG mapped to SDR by the formula of curation. Frames are numbered as
a player shows them (`reelweave.loader.dataset.samples.frames.shown_frames`). PyAV refuses
frames that FFmpeg marks as concealed damage, and those that depend on them; libvpx tells that of VP9. Of damage of HEVC
and VP8 little can be told, and decord returns grey frames for some damaged bytes, so callers compare checksums first.
"""

import io
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.buckets.crops import cover_size
from reelweave.loader.dataset.samples.frames.reorder import is_understated
from reelweave.loader.dataset.samples.frames.shown_frames import ToldFrames, read_told
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.loader.dataset.tars.orientation import orientation_of
from reelweave.loader.errors import RunError, refuse_shortage

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Pixels = NDArray[np.uint8]
Decoder = Callable[[bytes | memoryview, IndexArray, Pixels], None]
DecoderName = Literal["pyav", "decord"]

_DRAWN_AT_ONCE = 16
"""Columns that swscale converts at once without resizing."""
_MP4 = b"ftyp"  # bytes 4 to 8 of MP4 and MOV


def decode(
    clip: bytes | memoryview,
    indices: IndexArray,
    video_CTHW: Pixels,
    upright: bool = True,
    decoder: DecoderName = "pyav",
) -> None:
    """Decode frames of a clip as RGB, resized to cover the target size and cropped at the centre.

    Args:
        clip: a video file or an image.
        indices: int64 [T], rising, numbers of the frames in display order.
        video_CTHW: output, [3, T, height, width]; undefined after an error.
        upright: True if the pixels are known to be upright and square; others are rotated and stretched.
        decoder: decoder of upright MP4; decord only if installed.

    Raises:
        RunError: the clip is undecodable, has too few frames, or is damaged where they are.
    """
    by_decord = decoder == "decord" and upright and bytes(clip[4:8]) == _MP4 and _has_decord()
    (decode_with_decord if by_decord else decode_with_pyav)(clip, indices, video_CTHW)


def decode_with_decord(clip: bytes | memoryview, indices: IndexArray, video_CTHW: Pixels) -> None:
    """Decode an upright clip with decord, see `decode`; with PyAV where decord reads it wrongly."""
    frames_THWC = _by_decord(clip, indices, video_CTHW)
    if frames_THWC is None:
        decode_with_pyav(clip, indices, video_CTHW)
    else:
        np.copyto(video_CTHW, _centre(frames_THWC.transpose(3, 0, 1, 2), video_CTHW))


def _by_decord(clip: bytes | memoryview, indices: IndexArray, video_CTHW: Pixels) -> Pixels | None:
    """Return the frames [T, height, width, 3] that cover the target, or None for clips that decord reads wrongly."""
    import av
    import decord

    from reelweave.loader.dataset.colour import hdr

    last = int(indices[-1])
    try:
        # decord needs a decoded frame for a clip's size, the container does not.
        with open_clip(clip) as (container, stream):
            is_late = is_understated(container, stream)  # decord believes the header
        with open_clip(clip) as (container, stream):
            coded = stream.codec_context
            deep = coded.format is not None and coded.format.components[0].bits > 8
            told_frames = read_told(container, stream)
            # decord numbers hidden frames, too, and reads the first stream.
            is_plain = (
                told_frames is not None
                and not told_frames.hidden
                and stream.frames in (0, len(told_frames.pts))  # packets without a picture count there
                and not is_late
                and stream.index == container.streams.video[0].index
            )
            if deep or coded.color_trc in (hdr.PQ, hdr.HLG) or not is_plain:
                return None
            height, width = cover_size(stream.height, stream.width, *video_CTHW.shape[2:])
        reader = decord.VideoReader(
            io.BytesIO(clip), ctx=decord.cpu(0), num_threads=1, height=height, width=width
        )
        if len(reader) <= last:
            raise _too_short(len(reader), last)
        if len(reader.get_key_indices()) > 1:
            # decord's seek, also of skipped frames, returns wrong frames near the key frames of open GOPs.
            times = np.bincount(indices, minlength=last + 1)
            frames = ((shown, reader.next()) for shown in times.tolist())
            return np.stack([frame.asnumpy() for shown, frame in frames for _ in range(shown)])
        return np.asarray(reader.get_batch(indices.tolist()).asnumpy())
    except (av.FFmpegError, decord.DECORDError, RuntimeError, IndexError, StopIteration) as error:
        raise _undecodable(error) from error


def decode_with_pyav(clip: bytes | memoryview, indices: IndexArray, video_CTHW: Pixels) -> None:
    """Decode with PyAV, see `decode`; from the key frame before the first frame on, where packets tell all frames."""
    import av

    try:
        if not _decode_from_key(clip, indices, video_CTHW):
            with open_clip(clip) as (container, stream):
                drawer = _Drawer(stream.sample_aspect_ratio, clip)
                _draw(_all_frames(container, stream, clip), indices, video_CTHW, drawer)
    except (av.FFmpegError, IndexError) as error:
        raise _undecodable(error) from error


def _decode_from_key(clip: bytes | memoryview, indices: IndexArray, video_CTHW: Pixels) -> bool:
    """Decode from the key frame before the first frame; False where only decoding the whole clip tells the frames."""
    import av

    with open_clip(clip) as (container, stream):
        told_frames = read_told(container, stream)
        if told_frames is None or told_frames.turned:
            return False
        if len(told_frames.pts) <= (last := int(indices[-1])):
            raise _too_short(len(told_frames.pts), last)
        keys = np.flatnonzero(told_frames.is_key[: int(indices[0]) + 1])
        first = int(keys[-1]) if len(keys) else 0
        try:
            # Frames before a clip's first shown one may be needed to decode it.
            container.seek(int(told_frames.pts[first]), stream=stream)
            frames = _told_frames(container, stream, told_frames, first)
            _draw(frames, indices, video_CTHW, _Drawer(stream.sample_aspect_ratio, clip))
        except (
            _ContradictionError,
            _DamageError,
            av.FFmpegError,
        ):  # errors that stay are raised by the decode of the whole clip
            return False
    return True


class _DamageError(RunError):
    """A frame asked for is damaged, or depends on one that is."""


class _ContradictionError(Exception):
    """Decoded frames are not those that the packets told."""


def _told_frames(
    container: "InputContainer", stream: "VideoStream", told_frames: ToldFrames, first: int
) -> Iterator[tuple[int, "VideoFrame"]]:
    """Yield frames and their numbers from number ``first`` on.

    Raises:
        _ContradictionError: a frame is missing, or one too many; a seek that ends too late, or pictures of two packets.
    """
    index = first
    for frame in decode_stream(container, stream):
        if frame.pts is None:
            raise _ContradictionError
        if frame.pts < told_frames.pts[first]:
            continue
        if index == len(told_frames.pts) or frame.pts != told_frames.pts[index]:
            raise _ContradictionError
        yield index, frame
        index += 1
    raise _ContradictionError


def _all_frames(
    container: "InputContainer", stream: "VideoStream", clip: bytes | memoryview
) -> Iterator[tuple[int, "VideoFrame"]]:
    """Yield all frames and their numbers.

    Raises:
        _DamageError: a frame of HEVC is missing; FFmpeg leaves out what it cannot decode, without an error.
    """
    told_pts: NDArray[np.int64] | None = None
    if stream.codec_context.codec.canonical_name == "hevc":
        with open_clip(clip) as (packets, packet_stream):
            told_frames = read_told(packets, packet_stream)
        told_pts = told_frames.pts if told_frames is not None else None
    for index, frame in enumerate(decode_stream(container, stream)):
        if (
            told_pts is not None
            and index < len(told_pts)
            and frame.pts is not None
            and frame.pts > told_pts[index]
        ):
            raise _DamageError(f"the clip is damaged at frame {index}, counted from 0: it cannot be decoded")
        yield index, frame


def _draw(
    frames: Iterator[tuple[int, "VideoFrame"]],
    indices: IndexArray,
    video_CTHW: Pixels,
    drawer: "_Drawer",
) -> None:
    """Draw the frames asked for.

    Args:
        frames: numbers, rising by one, and frames; read as far as needed.
        indices: int64 [T], rising.
        video_CTHW: output.
        drawer: drawing of this clip's frames.

    Raises:
        RunError: there are too few frames, or one is damaged, or lies between a damaged one and the next key frame.
    """
    filled, shown, damaged = 0, 0, None
    for index, frame in frames:
        shown = index + 1
        if frame.is_corrupt:
            damaged = index if damaged is None else damaged
        elif frame.key_frame:
            damaged = None
        if index < indices[filled]:
            continue
        if damaged is not None:
            raise _DamageError(
                f"the clip is damaged at frame {damaged}, counted from 0; frame {index} depends on it"
            )
        # At a higher frame rate a frame repeats.
        behind = int(np.searchsorted(indices, index, side="right"))
        drawer.draw(frame, video_CTHW[:, filled:behind])
        filled = behind
        if filled == len(indices):
            return
    raise _too_short(shown, int(indices[-1]))


class _Drawer:
    """Drawing of one clip's frames; tables of swscale are kept between them.

    Args:
        pixel_aspect: width of a pixel over its height; None for square ones.
        clip: the clip; EXIF of a picture may turn it.
    """

    def __init__(self, pixel_aspect: Fraction | None, clip: bytes | memoryview) -> None:
        from av.video.reformatter import VideoReformatter

        from reelweave.loader.dataset.colour.sdr import SdrConverter, is_hdr

        self._pixel_aspect, self._clip = float(pixel_aspect or 1), clip
        self._scaler, self._shrinker = VideoReformatter(), VideoReformatter()
        self._sdr, self._is_hdr = SdrConverter(), is_hdr

    def draw(self, frame: "VideoFrame", video_CTHW: Pixels) -> None:
        """Draw a frame into all of the given places."""
        turn = orientation_of(frame, self._clip)
        shown = (frame.height, max(1, round(frame.width * self._pixel_aspect)))
        covering = cover_size(*(shown[::-1] if turn.transposed else shown), *video_CTHW.shape[2:])
        height, width = covering[::-1] if turn.transposed else covering
        frame = self._of_sdr(frame, height, width)
        same_size = (height, width) == (frame.height, frame.width)
        if same_size and 0 < width % _DRAWN_AT_ONCE <= _DRAWN_AT_ONCE // 2:
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


@cache
def _has_decord() -> bool:
    try:
        import decord  # noqa: F401 - asked only whether it is there
    except ImportError:
        return False
    return True


def _centre(pixels: Pixels, target: Pixels) -> Pixels:
    """Return the centre of pixels [..., height, width], in the size of `target`."""
    top, x = ((have - want) // 2 for have, want in zip(pixels.shape[-2:], target.shape[-2:], strict=True))
    return pixels[..., top : top + target.shape[-2], x : x + target.shape[-1]]


def _too_short(frames: int, last: int) -> RunError:
    return RunError(f"the clip has {frames} frames; frame {last}, counted from 0, was asked for")


def _undecodable(error: Exception) -> RunError:
    refuse_shortage(error, "decode a clip")
    what, *_ = *str(error).splitlines(), type(error).__name__
    return RunError(f"the clip cannot be decoded: {what}")
