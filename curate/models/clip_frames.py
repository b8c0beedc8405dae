"""Evenly spaced pictures of an encoded clip, the input of clip models."""

import io
from dataclasses import dataclass
from typing import Annotated

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.frames.source import SourceError, open_video
from reelweave.loader.dataset.colour.sdr import SdrConverter
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown
from reelweave.loader.dataset.samples.frames.upright import shown_size, upright_picture
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.loader.errors import UsageError, refuse_shortage


@dataclass(frozen=True)
class Fault:
    """Reason why a stage has no result for a clip, in words for ``accounting.parquet``."""

    reason: Annotated[str, Field(alias="fault")]


class ClipError(Exception):
    """Reason why a clip gives no pictures, in words; stages turn it into a `Fault`."""


def clip_pictures(
    data: bytes,
    fps: float | None = None,
    count: int | None = None,
    size: int | tuple[int, int] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Decode a clip once, in one thread, and return evenly spaced pictures.

    With ``fps`` the pictures are those shown at 0, 1 / fps, 2 / fps ... seconds. With ``count`` they are in
    the middle of ``count`` equal parts of the clip. With both, ``count`` limits the pictures of ``fps``. No
    frame is returned twice: a clip of fewer frames gives fewer pictures.

    Args:
        data: Bytes of a clip with a constant frame rate.
        fps: Pictures per second.
        count: Maximum number of pictures.
        size: Short side of the pictures, pixels, with the clip's aspect and without enlargement; or (width,
            height), whatever the clip's aspect. None: the encoded size.

    Returns:
        Pictures, uint8 [n, height, width, 3] RGB, and their display times, float64 [n], seconds after the
        first frame.

    Raises:
        ClipError: The bytes are no clip, or some of its frames do not decode.
        UsageError: A number is not above zero.
    """
    for name, value in (("fps", fps), ("count", count), ("size", size)):
        if value is not None and not (min(value) if isinstance(value, tuple) else value) > 0:
            raise UsageError(f"{name}={value} asks for no pictures; give a number above zero, or None")
    try:
        with io.BytesIO(data) as file, open_video(file) as (container, stream):
            # Packets are counted before anything is decoded, and tell a file that is cut off.
            frames = sum(1 for packet in container.demux(stream) if packet.size)
            rate = float(stream.average_rate or 0)
            if not frames or not rate:
                raise ClipError("the clip holds no frames")
            if stream.frames and frames != stream.frames:
                raise ClipError(f"the clip is cut off: it holds {frames} of {stream.frames} frames")
            # Decode no further than the last picture that is wanted.
            chosen = _frame_indices(frames, rate, fps, count)
            container.seek(0)
            scaler, sdr = VideoReformatter(), SdrConverter()
            pictures: list[NDArray[np.uint8]] = []
            for index, frame in enumerate(container.decode(stream)):
                if index == chosen[len(pictures)]:
                    pictures.append(_picture(sdr(frame), scaler, size))
                    if len(pictures) == len(chosen):
                        return np.stack(pictures), np.array(chosen) / rate
    except (SourceError, av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise ClipError(f"the clip does not decode: {error}") from error
    raise ClipError(f"the clip decodes to {index + 1} frames instead of {frames}")


def shown_pictures(
    data: bytes, count: int, size: int | tuple[int, int] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Decode any film and return pictures in the middle of equal parts, upright and with square pixels.

    Args:
        data: Bytes of a film in a container of the loader, of any rate.
        count: Maximum number of pictures.
        size: As in `clip_pictures`.

    Returns:
        As `clip_pictures` does.

    Raises:
        ClipError: The bytes are no film, or it does not decode.
    """
    try:
        chosen, rate = _frame_indices(count_shown(data), 1, None, count), 0.0
        pictures: list[NDArray[np.uint8]] = []
        with open_clip(data) as (container, stream):
            rate = float(stream.average_rate or 0)
            for index, frame in enumerate(decode_stream(container, stream)):
                if len(pictures) < len(chosen) and index == chosen[len(pictures)]:
                    shown = shown_size(frame, stream.sample_aspect_ratio, data)
                    height, width = size[::-1] if isinstance(size, tuple) else _shrunk(shown, size)
                    smaller = (height, width) != shown
                    pictures.append(
                        upright_picture(frame, (height, width), data, "AREA" if smaller else "BICUBIC")
                    )
    except (IndexError, av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise ClipError(f"the film does not decode: {error}") from error
    if not pictures or len(pictures) < len(chosen):
        raise ClipError("the film does not decode: frames are missing")
    return np.stack(pictures), np.array(chosen) / (rate or 1.0)


def _frame_indices(frames: int, rate: float, fps: float | None, count: int | None) -> list[int]:
    """Return rising frame numbers; the frame shown at a time is the last one that began before it."""
    if fps is not None:
        shown = np.arange(0, frames / rate, 1 / fps) * rate
        indices = np.unique(np.floor(shown + 1e-6).astype(int).clip(0, frames - 1))
    else:
        indices = np.arange(frames)
    if count is not None and count < len(indices):
        indices = indices[((np.arange(count) + 0.5) * len(indices) / count).astype(int)]
    return [int(index) for index in indices]


def _picture(
    frame: VideoFrame, scaler: VideoReformatter, size: int | tuple[int, int] | None
) -> NDArray[np.uint8]:
    if isinstance(size, tuple):
        width, height = size
    else:
        height, width = _shrunk((frame.height, frame.width), size)
    smaller = (width, height) != (frame.width, frame.height)
    small = scaler.reformat(frame, width, height, "rgb24", interpolation="AREA" if smaller else "BICUBIC")
    return np.asarray(small.to_ndarray(), np.uint8)


def _shrunk(shown: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """Return height and width with the same aspect and a short side of at most so many pixels."""
    scale = min(1.0, short_side / min(shown)) if short_side else 1.0
    return max(1, round(shown[0] * scale)), max(1, round(shown[1] * scale))
