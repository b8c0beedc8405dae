"""What all scores of a clip are taken from: one shared sample, collected while the clip is cut."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True, eq=False)
class ClipSample:
    """A few small pictures of a clip and a few numbers of each of its frames.

    Attributes:
        pictures: uint8 [n, h, w, 3] RGB of finished pictures, n > 0, evenly spaced, aspect kept.
        times_s: float64 [n], rising: when each picture is shown, seconds after the clip's start.
        luma: float32 [frames]: mean luminance of every frame of the clip, 0 to 255.
        steps: float32 [frames]: mean absolute difference of the luminance to the frame before, grey levels,
            at 64x36 pixels; the first is 0.
        motion: float32 [frames]: as `curate.filters.vectors.MotionMeter` gives it: mean displacement in picture
            diagonals per frame, NaN where a frame was not measured; None: nothing was measured.
        width: of the clip, pixels.
        height: of the clip, pixels.
        frames: of the clip.
        fps: of the clip.
        duration_s: of the clip.
        audio_dbfs: float32 [windows]: loudness of every 100 ms, as `curate.filters.sound.levels` gives it; empty:
            the clip has no sound track; None: not measured.
        motion_local: as ``motion``, for what is left when the camera's motion is taken away.
        vectors_missing: the codec has motion vectors and yet none came.
    """

    pictures: NDArray[np.uint8]
    times_s: NDArray[np.float64]
    luma: Floats
    steps: Floats
    motion: Floats | None
    width: int
    height: int
    frames: int
    fps: float
    duration_s: float
    audio_dbfs: Floats | None
    motion_local: Floats | None = None
    vectors_missing: bool = False

    @cached_property
    def grey(self) -> Floats:
        """Luminance of the pictures (Rec. 601), [n, h, w], 0 to 255."""
        grey = np.empty(self.pictures.shape[:3], np.float32)
        for picture, out in zip(self.pictures, grey, strict=True):  # one at a time stays in the cache
            np.matmul(picture.astype(np.float32), _LUMA, out=out)
        return grey
