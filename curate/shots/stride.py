"""Shots of equal length, without looking at the pictures: the baseline every detector has to beat."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.shots.types import Transition


class FixedStrideConfig(BaseModel, frozen=True, extra="forbid"):
    """How long the pieces are."""

    stride_s: float = Field(10.0, gt=0, description="seconds from one boundary to the next")


class FixedStride:
    """Reports a cut every `stride_s` seconds; a `ShotDetector`.

    Args:
        config: The stride.
        fps: Frames per second of the video, constant or mean.
    """

    def __init__(self, config: FixedStrideConfig, fps: float) -> None:
        self._stride = max(1, round(config.stride_s * fps))
        self._frames = 0

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes: as few pixels as a scaler makes."""
        return 16, 16

    def push(self, frame: NDArray[np.uint8]) -> None:  # noqa: ARG002 - the interface of all detectors
        """Count the next frame."""
        self._frames += 1

    def finish(self) -> list[Transition]:
        """All boundaries."""
        return [
            Transition(frame - 1, frame, "cut") for frame in range(self._stride, self._frames, self._stride)
        ]
