"""Pictures of a clip's frames as people see them: upright, with square pixels, and 8-bit SDR."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.dataset.samples.frames.lasting_turn import LastingTurn
from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.reorder import is_reordered
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.loader.dataset.tars.orientation import orientation_of

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


def shown_size(
    frame: "VideoFrame", pixel_aspect: Fraction | None, clip: bytes | memoryview = b""
) -> tuple[int, int]:
    """Return height and width of a frame, upright and with square pixels.

    Args:
        frame: decoded frame.
        pixel_aspect: width of a pixel over its height, as the stream states; None for square ones.
        clip: the bytes it was decoded from, where these may be a picture with EXIF.
    """
    height, width = frame.height, max(1, round(frame.width * (pixel_aspect or 1)))
    return (width, height) if orientation_of(frame, clip).transposed else (height, width)


def upright_picture(
    frame: "VideoFrame", size: tuple[int, int], clip: bytes | memoryview = b"", interpolation: str = "AREA"
) -> NDArray[np.uint8]:
    """Return a frame upright, in a size, as uint8 [height, width, 3] RGB.

    Args:
        frame: decoded frame.
        size: height and width of the picture.
        clip: as in `shown_size`.
        interpolation: how it is resized.
    """
    from reelweave.loader.dataset.colour.sdr import SdrConverter

    turn = orientation_of(frame, clip)
    height, width = size[::-1] if turn.transposed else size
    picture = SdrConverter()(frame).reformat(width, height, "rgb24", interpolation=interpolation)
    return np.ascontiguousarray(turn.of(picture.to_ndarray()))


def key_frames(
    clip: bytes | memoryview, shares: Sequence[float]
) -> Iterator[tuple["VideoFrame", Fraction | None]]:
    """Yield the key frame before each of some places of a clip, and the aspect of its pixels.

    Args:
        clip: a video file or an image.
        shares: places, rising, as shares of its duration.

    Raises:
        av.FFmpegError: the clip cannot be decoded.
        IndexError: it has no video.
    """
    with open_clip(clip) as (container, stream):
        # A message of the codec that turns frames may lie before the key frame of a seek.
        turn = LastingTurn(stream)
        for packet in read_packets(container, stream) if is_reordered(stream) else ():
            turn(packet)
        begin, duration = stream.start_time or 0, stream.duration or 0
        stamps = [begin + int(share * duration) for share in shares]
    if turn.seen:
        yield from _key_frames_in_order(clip, stamps)
        return
    with open_clip(clip) as (container, stream):
        for stamp in stamps:
            container.seek(stamp, stream=stream)
            if (frame := next(decode_stream(container, stream), None)) is not None:
                yield frame, stream.sample_aspect_ratio


def _key_frames_in_order(
    clip: bytes | memoryview, stamps: Sequence[int]
) -> Iterator[tuple["VideoFrame", Fraction | None]]:
    """Yield the key frame before each stamp; all packets are read, and those of key frames decoded."""
    with open_clip(clip) as (container, stream):
        stream.codec_context.skip_frame = "NONKEY"
        last: VideoFrame | None = None
        left = list(stamps)
        for frame in decode_stream(container, stream):
            while last is not None and left and left[0] < (frame.pts or 0):
                yield last, stream.sample_aspect_ratio
                del left[0]
            last = frame
        if last is not None:
            yield from [(last, stream.sample_aspect_ratio)] * len(left)
