"""Films of 24 frames per second woven into 60 fields, and other footage of 30 frames per second."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from tests.media import numbered_frame

NTSC = Fraction(30000, 1001)


def fields_of(frames: int, order: str = "tff", cadence: Sequence[int] = (2, 3)) -> list[tuple[int, int]]:
    """Return the numbers of the film frames in the upper and the lower field of each frame.

    Args:
        frames: Number of film frames.
        order: "tff" or "bff".
        cadence: Fields per film frame, over and over; (2, 3) is pulldown.
    """
    shown = [frame for frame in range(frames) for _ in range(cadence[frame % len(cadence)])]
    pairs = list(zip(shown[::2], shown[1::2], strict=False))
    return pairs if order == "tff" else [(upper, lower) for lower, upper in pairs]


def woven(
    path: Path,
    fields: Sequence[tuple[int, int]],
    *,
    scenes: Sequence[int] = (),
    order: str = "tff",
    codec: str = "mpeg2video",
    flagged: bool = True,
    size: tuple[int, int] = (160, 128),
) -> Path:
    """Write frames of two fields each.

    Args:
        path: File.
        fields: Numbers of the pictures in the upper and the lower field of each frame.
        scenes: First pictures of new scenes.
        order: Order of the fields, told to the encoder.
        codec: Name of the encoder.
        flagged: Whether frames are coded and marked as interlaced.
        size: Width and height.
    """
    options = {"mpeg2video": {"qscale": "2"}, "libx264": {"crf": "12", "mbtree": "0"}}[codec]
    if flagged:
        options |= {"flags": "+ildct+ilme"} if codec == "mpeg2video" else {"x264-params": "interlaced=1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=NTSC, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for upper, lower in fields:
            picture, other = (_picture(number, scenes, size) for number in (upper, lower))
            # Rows of chroma belong to fields, too.
            planes = [plane.copy() for plane in picture]
            for plane, odd in zip(planes, other, strict=True):
                plane[1::2] = odd[1::2]
            frame = av.VideoFrame.from_ndarray(
                np.concatenate([one.ravel() for one in planes]).reshape(-1, size[0]), "yuv420p"
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _picture(number: int, scenes: Sequence[int], size: tuple[int, int]) -> list[np.ndarray]:
    scene = sum(number >= first for first in scenes)
    frame = av.VideoFrame.from_ndarray(numbered_frame(number, *size, scene), "rgb24").reformat(
        format="yuv420p"
    )
    width, height = size
    flat = frame.to_ndarray().ravel()
    luma = width * height
    return [
        flat[:luma].reshape(height, width),
        flat[luma : luma + luma // 4].reshape(height // 2, width // 2),
        flat[luma + luma // 4 :].reshape(height // 2, width // 2),
    ]
