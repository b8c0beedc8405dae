"""Scaling of decoded frames to the small pictures that detectors analyse."""

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from reelweave.loader.base.operations import charged


class Scaler:
    """Scaler of frames to one size, ignoring their aspect; keep one per source.

    It keeps the tables of swscale, which `frame.reformat()` rebuilds for every frame.

    Args:
        size: (width, height) of the scaled pictures.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._width, self._height = size
        self._reformatter = VideoReformatter()

    @charged("shots: small pictures")
    def __call__(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Scale a frame to [height, width, 3] RGB, each pixel the mean of its area."""
        small = self._reformatter.reformat(
            frame, self._width, self._height, "rgb24", interpolation="AREA", threads=1
        )
        return np.asarray(small.to_ndarray(), np.uint8)


def area_weights(pixels: int, to: int) -> NDArray[np.float32]:
    """Return the weights [to, pixels] of area scaling from `pixels` to `to` samples; rows add up to 1."""
    edges = np.arange(to + 1) * (pixels / to)
    starts = np.arange(pixels)
    covered = np.minimum(edges[1:, None], starts + 1) - np.maximum(edges[:-1, None], starts)
    return np.asarray(covered.clip(0) * (to / pixels), np.float32)
