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
            frames = sum(1 for packet in container.demux(stream) if packet.size)
            rate = float(stream.average_rate or 0)
            if not frames or not rate:
                raise ClipError("the clip holds no frames")
            if stream.frames and frames != stream.frames:
                raise ClipError(f"the clip is cut off: it holds {frames} of {stream.frames} frames")
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
        scale = min(1.0, size / min(frame.width, frame.height)) if size else 1.0
        width, height = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
    smaller = (width, height) != (frame.width, frame.height)
    small = scaler.reformat(frame, width, height, "rgb24", interpolation="AREA" if smaller else "BICUBIC")
    return np.asarray(small.to_ndarray(), np.uint8)
