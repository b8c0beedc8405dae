"""Shots of equal length, for footage without cuts and as a baseline."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.shots.types import Transition
from reelweave.loader.settings import Settings

_SIZE = (64, 36)  # size that other consumers of the same frames expect; this detector ignores the pictures


class FixedStrideConfig(Settings):
    """Stride of the cuts between shots of equal length."""

    stride_s: float = Field(
        10.0, gt=0, description="length of each shot but the last, seconds; such shots are not stitched"
    )


class FixedStrideDetector:
    """Detector that cuts after every `stride_s` seconds, at the nearest frame; a `ShotDetector`.

    Args:
        config: Stride between cuts.
        fps: Frames per second of the source, above 0; a stride is at least one frame.
    """

    def __init__(self, config: FixedStrideConfig, fps: float) -> None:
        self._stride = max(1.0, config.stride_s * fps)
        self._frames = 0

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`."""
        return _SIZE

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Count the next frame in display order."""
        del frame
        self._frames += 1

    def finish(self) -> list[Transition]:
        """Return the cuts; the end of the video is none."""
        strides = range(1, int(self._frames / self._stride) + 1)
        starts = (round(stride * self._stride) for stride in strides)
        return [Transition(start - 1, start, "cut") for start in starts if start < self._frames]
