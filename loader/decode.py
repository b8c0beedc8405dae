"""A clip's bytes to the pixels of its bucket.

Two decoders give nearly the same pixels: decord where it can be imported, PyAV elsewhere. Both convert
and resize with swscale's bilinear filter (antialiased when it shrinks; decord offers no other) and use the
clip's own colour matrix, BT.601 when it names none. Neither tells damaged bytes for sure, decord returns
grey frames for some: whoever holds a checksum compares it first.
"""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from loader.buckets import Bucket
from loader.errors import RunError

Decoder = Callable[[bytes, Bucket, int], NDArray[np.uint8]]


def decode(clip: bytes, bucket: Bucket, start: int) -> NDArray[np.uint8]:
    """``bucket.frames`` frames from ``start`` on, resized to cover the bucket's size, cropped at the centre.

    Args:
        clip: a video file.
        bucket: the shape wanted.
        start: the first frame, counted in shown order.

    Returns:
        RGB of shape [frames, height, width, 3].

    Raises:
        RunError: the clip cannot be decoded, or has fewer frames.
    """
    return _decoder()(clip, bucket, start)


def decode_with_decord(clip: bytes, bucket: Bucket, start: int) -> NDArray[np.uint8]:
    """``decode`` by decord."""
    import decord

    def read(height: int = -1, width: int = -1) -> decord.VideoReader:
        # Decoding spreads over clips, so one clip needs one thread.
        return decord.VideoReader(
            io.BytesIO(clip), ctx=decord.cpu(0), num_threads=1, height=height, width=width
        )

    try:
        own_height, own_width, _ = read()[0].shape
        reader = read(*_cover(own_height, own_width, bucket))
        if len(reader) < start + bucket.frames:
            raise _too_short(len(reader), bucket, start)
        if start and len(reader.get_key_indices()) > 1:
            # decord's seek lands on wrong frames near the keyframes of open groups of pictures.
            for _ in range(start):
                reader.next()
            frames_THWC = np.stack([reader.next().asnumpy() for _ in range(bucket.frames)])
        else:
            frames_THWC = reader.get_batch(range(start, start + bucket.frames)).asnumpy()
    except (decord.DECORDError, RuntimeError, IndexError, StopIteration) as error:
        raise _undecodable(error) from error
    return _centre(frames_THWC, bucket)


def decode_with_pyav(clip: bytes, bucket: Bucket, start: int) -> NDArray[np.uint8]:
    """``decode`` by PyAV: seeks to the keyframe before the frames."""
    import av
    from av.video.reformatter import VideoReformatter

    frames_THWC = np.empty((bucket.frames, bucket.height, bucket.width, 3), dtype=np.uint8)
    filled = 0
    reformatter = VideoReformatter()
    try:
        with av.open(io.BytesIO(clip), mode="r") as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            stamps = sorted(
                (packet.pts, packet.is_keyframe)
                for packet in container.demux(stream)
                if packet.pts is not None
            )
            if len(stamps) < start + bucket.frames:
                raise _too_short(len(stamps), bucket, start)
            first = stamps[start][0]
            container.seek(
                max((pts for pts, is_key in stamps[: start + 1] if is_key), default=stamps[0][0]),
                stream=stream,
            )
            for frame in container.decode(stream):
                if frame.pts is None or frame.pts < first:
                    continue
                height, width = _cover(frame.height, frame.width, bucket)
                image = reformatter.reformat(
                    frame, width, height, "rgb24", interpolation="BILINEAR", threads=1
                )
                image_HWC = np.asarray(image.to_ndarray(), dtype=np.uint8)
                frames_THWC[filled] = _centre(image_HWC[np.newaxis], bucket)
                filled += 1
                if filled == bucket.frames:
                    return frames_THWC
    except (av.FFmpegError, IndexError) as error:
        raise _undecodable(error) from error
    raise _too_short(start + filled, bucket, start)


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


def _too_short(frames: int, bucket: Bucket, start: int) -> RunError:
    return RunError(f"the clip has {frames} frames; {bucket.frames} from frame {start} on were asked for")


def _undecodable(error: Exception) -> RunError:
    what, *_ = *str(error).splitlines(), type(error).__name__
    return RunError(f"the clip cannot be decoded: {what}")
