"""Strips of frames of a clip as one JPEG, for pictures that move when they are pointed at."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.pipelines.report.numbers.spread import spread

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL.Image import Image

FRAMES = 8
_SIDE_PX = 240
_QUALITY = 72
_MOST_DECODED_PX = 600 * 1280 * 720
"""Pixels of a clip above which only keyframes are decoded."""


@dataclass(frozen=True)
class Strip:
    """Frames of a clip side by side.

    Attributes:
        jpeg: the picture.
        frames: number of frames in it, at most `FRAMES`.
        width: width of one frame, pixels.
        height: height of one frame, pixels.
    """

    jpeg: bytes
    frames: int
    width: int
    height: int


def strip(clip: bytes, frames: int) -> Strip | None:
    """Return evenly spread frames of a clip; None if it cannot be decoded.

    Args:
        clip: the encoded clip.
        frames: number of its frames; 0 where only its header tells.
    """
    import av

    try:
        with open_clip(clip) as (container, stream):
            count = frames or stream.frames or 1
            size = stream.codec_context.width * stream.codec_context.height
            frame_indices = spread(count, FRAMES)
            large = count * size > _MOST_DECODED_PX and stream.duration
            pictures = (
                _by_seeking(container, stream, len(frame_indices))
                if large
                else _in_order(container, stream, frame_indices)
            )
    except (av.error.FFmpegError, ValueError, IndexError, MemoryError):
        return None  # `reelweave verify` is what names damaged clips
    return _join_pictures(pictures) if pictures else None


def _in_order(container: "InputContainer", stream: "VideoStream", frame_indices: list[int]) -> list["Image"]:
    pictures: list[Image] = []
    for frame_index, frame in enumerate(decode_stream(container, stream)):
        if frame_index == frame_indices[len(pictures)]:
            pictures.append(_small(frame))
            if len(pictures) == len(frame_indices):
                break
    return pictures


def _by_seeking(container: "InputContainer", stream: "VideoStream", count: int) -> list["Image"]:
    """Return the keyframes before evenly spread times of a long clip."""
    pictures = []
    for position in spread(stream.duration or 1, count):
        container.seek((stream.start_time or 0) + position, stream=stream)
        pictures.append(_small(next(decode_stream(container, stream))))
    return pictures


def _small(frame: object) -> "Image":
    from av.video.frame import VideoFrame

    from reelweave.loader.dataset.colour.sdr import SdrConverter

    assert isinstance(frame, VideoFrame)
    scale = _SIDE_PX / max(frame.width, frame.height)
    picture: Image = SdrConverter()(frame).to_image(  # type: ignore[no-untyped-call]  # PyAV's
        width=max(2, round(frame.width * scale)),
        height=max(2, round(frame.height * scale)),
        interpolation="AREA",
    )
    return picture


def _join_pictures(pictures: list["Image"]) -> Strip:
    from PIL import Image

    width, height = pictures[0].size
    image = Image.new("RGB", (width * len(pictures), height))
    for index, picture in enumerate(pictures):
        image.paste(
            picture if picture.size == (width, height) else picture.resize((width, height)),
            (index * width, 0),
        )
    data = io.BytesIO()
    image.save(data, "JPEG", quality=_QUALITY)
    return Strip(data.getvalue(), len(pictures), width, height)
