"""A clip's bytes to the pixels of its bucket.

Two decoders give nearly the same pixels: decord where it can be imported, PyAV elsewhere. Both convert
and resize with swscale's bilinear filter (antialiased when it shrinks; decord offers no other) and use the
clip's own colour matrix, BT.601 when it names none. Neither tells damaged bytes for sure, decord returns
grey frames for some: whoever holds a checksum compares it first.
"""

import io
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loader.arrays import Places
from loader.buckets import Bucket
from loader.dataset.media import FORMATS
from loader.errors import RunError

if TYPE_CHECKING:
    from av.container import InputContainer

Decoder = Callable[[bytes | memoryview, Bucket, Places], NDArray[np.uint8]]

_MP4 = b"ftyp"  # at byte 4 of MP4 and MOV


def decode(
    clip: bytes | memoryview, bucket: Bucket, numbers: Places, upright: bool = True
) -> NDArray[np.uint8]:
    """Frames of a clip, resized to cover the bucket's size, cropped at the centre.

    Args:
        clip: a video file or an image.
        bucket: the shape wanted.
        numbers: int64 [bucket.frames], rising, of the frames in shown order.
        upright: whether its pixels are known to be upright and square; others are turned and stretched as viewers do.

    Returns:
        RGB of shape [frames, height, width, 3].

    Raises:
        RunError: the clip cannot be decoded, or has fewer frames.
    """
    decoder = _decoder() if upright and bytes(clip[4:8]) == _MP4 else decode_with_pyav
    return decoder(clip, bucket, numbers)


def decode_with_decord(clip: bytes | memoryview, bucket: Bucket, numbers: Places) -> NDArray[np.uint8]:
    """``decode`` of an upright clip by decord."""
    import av
    import decord

    last = int(numbers[-1])
    try:
        # decord tells a clip's size only with a decoded frame, the container at once.
        with _opened(clip) as container:
            own = container.streams.video[0]
            height, width = _cover(own.height, own.width, bucket)
        # Decoding spreads over clips, so one clip needs one thread.
        reader = decord.VideoReader(
            io.BytesIO(clip), ctx=decord.cpu(0), num_threads=1, height=height, width=width
        )
        if len(reader) <= last:
            raise _too_short(len(reader), last)
        if numbers[0] and len(reader.get_key_indices()) > 1:
            # decord's seek lands on wrong frames near the keyframes of open groups of pictures.
            times = np.bincount(numbers, minlength=last + 1)
            frames = ((shown, reader.next()) for shown in times.tolist())
            frames_THWC = np.stack([frame.asnumpy() for shown, frame in frames for _ in range(shown)])
        else:
            frames_THWC = reader.get_batch(numbers.tolist()).asnumpy()
    except (av.FFmpegError, decord.DECORDError, RuntimeError, IndexError, StopIteration) as error:
        raise _undecodable(error) from error
    return _centre(frames_THWC, bucket)


def decode_with_pyav(clip: bytes | memoryview, bucket: Bucket, numbers: Places) -> NDArray[np.uint8]:
    """``decode`` by PyAV: seeks to the keyframe before the frames."""
    import av
    from av.video.reformatter import VideoReformatter

    frames_THWC = np.empty((bucket.frames, bucket.height, bucket.width, 3), dtype=np.uint8)
    filled, last = 0, int(numbers[-1])
    reformatter = VideoReformatter()
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
                turns = round(frame.rotation / 90) % 4
                shown = (frame.height, max(1, round(frame.width * (stream.sample_aspect_ratio or 1))))
                covering = _cover(*(shown[::-1] if turns % 2 else shown), bucket)
                height, width = covering[::-1] if turns % 2 else covering
                image = reformatter.reformat(
                    frame, width, height, "rgb24", interpolation="BILINEAR", threads=1
                )
                image_HWC = np.rot90(np.asarray(image.to_ndarray(), dtype=np.uint8), turns)
                # A frame that is slowed down is shown more than once.
                behind = bisect_right(wanted, frame.pts)
                frames_THWC[filled:behind] = _centre(image_HWC[np.newaxis], bucket)
                filled = behind
                if filled == bucket.frames:
                    return frames_THWC
    except (av.FFmpegError, IndexError) as error:
        raise _undecodable(error) from error
    raise _too_short(filled, last)


def _opened(clip: bytes | memoryview) -> "InputContainer":
    import av

    # FFmpeg would follow a playlist to files of its choice, under whatever name it comes.
    return av.open(io.BytesIO(clip), mode="r", options={"format_whitelist": FORMATS})


@cache
def _decoder() -> Decoder:
    try:
        import decord  # noqa: F401 - asked only whether it is there
    except ImportError:
        return decode_with_pyav
    return decode_with_decord


def _cover(height: int, width: int, bucket: Bucket) -> tuple[int, int]:
    """The smallest size of the frame's own aspect ratio that covers the bucket's."""
    scale = max(bucket.height / height, bucket.width / width)
    return max(bucket.height, round(height * scale)), max(bucket.width, round(width * scale))


def _centre(frames_THWC: NDArray[np.uint8], bucket: Bucket) -> NDArray[np.uint8]:
    top = (frames_THWC.shape[1] - bucket.height) // 2
    left = (frames_THWC.shape[2] - bucket.width) // 2
    return frames_THWC[:, top : top + bucket.height, left : left + bucket.width]


def _too_short(frames: int, last: int) -> RunError:
    return RunError(f"the clip has {frames} frames; frame {last}, counted from 0, was asked for")


def _undecodable(error: Exception) -> RunError:
    what, *_ = *str(error).splitlines(), type(error).__name__
    return RunError(f"the clip cannot be decoded: {what}")
