"""Stage that measures the movement of the camera: ``stages.camera.use=reelweave.curate.models.camera:CameraMotion``."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from reelweave.curate.models.camera_scores import camera_scores
from reelweave.curate.models.custom.types import Clip, CustomStage, StageConfig

_GREY = np.array([0.299, 0.587, 0.114], np.float32)


class CameraConfig(StageConfig):
    """Pictures from which the movement of the camera is measured."""

    fps: float = Field(8.0, ge=4, le=30, description="pictures that are compared, per second")
    short_side_px: int = Field(96, ge=64, le=256, description="short side of these pictures, pixels")


class CameraMotion(CustomStage):
    """Pan, tilt, zoom, roll and shake of a clip."""

    Config = CameraConfig
    scores: ClassVar = {
        "camera_pan": "lasting movement sideways, picture widths a second",
        "camera_tilt": "lasting movement up or down, picture heights a second",
        "camera_zoom": "lasting change of size, natural logarithm a second",
        "camera_roll": "lasting turn, degrees a second",
        "camera_shake": "movement that does not last, picture diagonals a second",
    }

    def __call__(self, clips: Sequence[Clip]) -> list[dict[str, float]]:
        """Return the scores of each clip; none where the pictures have too little structure."""
        return [self._scores(clip) for clip in clips]

    def _scores(self, clip: Clip) -> dict[str, float]:
        fps = min(self.config.fps, clip.fps)
        pictures = clip.pictures(fps=fps, size=self.config.short_side_px)
        return camera_scores(pictures.astype(np.float32) @ _GREY, fps)
