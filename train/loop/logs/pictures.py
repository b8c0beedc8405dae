"""Pictures of videos: strips of their frames, and sheets of strips."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP_PX = 4


def filmstrip(video_CTHW: NDArray[np.uint8], frames: int) -> Image.Image:
    """Return evenly chosen frames of an RGB video beside each other, at most so many."""
    _, count, height, width = video_CTHW.shape
    chosen = np.linspace(0, count - 1, min(count, frames)).round().astype(int)
    strip = Image.new("RGB", (len(chosen) * (width + GAP_PX) - GAP_PX, height), "white")
    for index, frame in enumerate(chosen):
        picture_HWC = np.ascontiguousarray(video_CTHW[:, frame].transpose(1, 2, 0))
        strip.paste(Image.fromarray(picture_HWC), (index * (width + GAP_PX), 0))
    return strip


def sheet(rows: Sequence[Sequence[Image.Image | None]]) -> Image.Image:
    """Return pictures in rows and columns, each column as wide and each row as high as its largest picture."""
    widths = [
        max(picture.width if picture else 0 for picture in column) for column in zip(*rows, strict=True)
    ]
    heights = [max(picture.height if picture else 0 for picture in row) for row in rows]
    canvas = Image.new(
        "RGB", (sum(widths) + GAP_PX * (len(widths) - 1), sum(heights) + GAP_PX * (len(rows) - 1))
    )
    canvas.paste("white", (0, 0, *canvas.size))
    top = 0
    for row, height in zip(rows, heights, strict=True):
        left_px = 0
        for picture, width in zip(row, widths, strict=True):
            if picture:
                canvas.paste(picture, (left_px, top))
            left_px += width + GAP_PX
        top += height + GAP_PX
    return canvas


def png(picture: Image.Image) -> bytes:
    """Encode a picture as PNG."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
