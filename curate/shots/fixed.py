"""Shots of equal length, for footage without cuts and as the plainest thing to compare with."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.shots.types import Transition

_SIZE = (64, 36)  # what the other readers of the same frames expect; this detector does not look


class FixedStrideConfig(BaseModel, frozen=True, extra="forbid"):
    """Shots of equal length."""

    stride_s: float = Field(10.0, gt=0, description="length of each shot but the last, seconds")


class FixedStrideDetector:
    """Puts a cut after every `stride_s` seconds, to the nearest frame; a `ShotDetector`.

    Args:
        config: The stride.
        fps: Frames per second of the source, above 0; a stride is never shorter than a frame.
    """

    def __init__(self, config: FixedStrideConfig, fps: float) -> None:
        self._stride = max(1.0, config.stride_s * fps)
        self._frames = 0

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return _SIZE

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Count the next shown frame."""
        del frame
        self._frames += 1

    def finish(self) -> list[Transition]:
        """The cuts; the end of the video is none."""
        strides = range(1, int(self._frames / self._stride) + 1)
        starts = (round(number * self._stride) for number in strides)
        return [Transition(start - 1, start, "cut") for start in starts if start < self._frames]
