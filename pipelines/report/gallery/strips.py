"""Strips of frames of a clip as one JPEG, for pictures that move when they are pointed at."""

import io
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from reelweave.loader.dataset.samples.frames.upright import key_frames, shown_size, upright_picture
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, is_checked, open_clip
from reelweave.pipelines.report.numbers.places import spread

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from PIL.Image import Image

FRAMES = 8
_SIDE_PX = 240
_QUALITY = 72
_MOST_DECODED_PX = 600 * 1280 * 720
"""Pixels of a clip above which it is sought for its pictures, instead of read from its begin."""


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
        with open_clip(clip) as (_, stream):
            count = frames or stream.frames or 1
            size = stream.codec_context.width * stream.codec_context.height
            large = count * size > _MOST_DECODED_PX and stream.duration
        frame_indices = spread(count, FRAMES)
        if large:
            pictures = _by_seeking(clip, len(frame_indices))
        else:
            pictures = _key_frames(clip, count) or _in_order(clip, frame_indices)
    except (av.error.FFmpegError, ValueError, IndexError, MemoryError):
        return None  # `reelweave verify` is what names damaged clips
    return _join_pictures(pictures) if pictures else None


def _key_frames(clip: bytes, frames: int) -> list["Image"]:
    """Return key frames of a clip, evenly spread; none where it has too few of them, or hardly anything else.

    To decode all frames for eight pictures of them takes nine tenths of the time of a report.
    """
    with open_clip(clip) as (container, stream):
        if is_checked(stream):
            return []  # libvpx skips no frame
        keys = sum(packet.is_keyframe for packet in container.demux(stream) if packet.size)
    if not FRAMES // 2 <= keys <= frames // 2:
        return []
    key_indices, pictures, key_index = spread(keys, FRAMES), list["Image"](), 0
    with open_clip(clip) as (container, stream):
        stream.codec_context.skip_frame = "NONKEY"
        # Some decoders skip nothing.
        for frame in decode_stream(container, stream):
            if not frame.key_frame:
                continue
            if len(pictures) < len(key_indices) and key_index == key_indices[len(pictures)]:
                pictures.append(_small(frame, stream.sample_aspect_ratio, clip))
            key_index += 1
    return pictures if len(pictures) == len(key_indices) else []


def _in_order(clip: bytes, frame_indices: list[int]) -> list["Image"]:
    pictures: list[Image] = []
    with open_clip(clip) as (container, stream):
        for frame_index, frame in enumerate(decode_stream(container, stream)):
            if frame_index == frame_indices[len(pictures)]:
                pictures.append(_small(frame, stream.sample_aspect_ratio, clip))
                if len(pictures) == len(frame_indices):
                    break
    return pictures


def _by_seeking(clip: bytes, count: int) -> list["Image"]:
    """Return the keyframes before evenly spread times of a long clip."""
    shares = [(2 * index + 1) / (2 * count) for index in range(count)]
    return [_small(frame, pixel_aspect, clip) for frame, pixel_aspect in key_frames(clip, shares)]


def _small(frame: "VideoFrame", pixel_aspect: Fraction | None, clip: bytes) -> "Image":
    from PIL import Image

    size = shown_size(frame, pixel_aspect, clip)
    height, width = (max(2, round(side * _SIDE_PX / max(size))) for side in size)
    return Image.fromarray(upright_picture(frame, (height, width), clip))


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
