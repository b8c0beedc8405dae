"""Frame sampling: the choice of a bucket's frames from a longer clip."""

import hashlib
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, PositiveInt, model_validator

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.settings import Settings


class FrameSampling(Settings):
    """Choice of a bucket's frames from a clip that has more.

    window: consecutive frames from a random one on. all: consecutive frames from the first one on. stride: every
    ``stride``-th frame from a random one on. fps: resampled to ``fps`` frames per second, from a random frame on, by
    the frames' time stamps where the clip's rate varies. Frames repeat where the clip has fewer per second.
    """

    mode: Literal["window", "all", "stride", "fps"] = Field(
        "window", description="choice of frames from a longer clip; all: the first frames"
    )
    stride: PositiveInt | None = Field(
        None, description="`mode: stride`: frames from one chosen frame to the next"
    )
    fps: float | None = Field(
        None, gt=0, le=1000, description="`mode: fps`: frames per second after resampling"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in ("stride", "fps"):
            if (self.mode == name) != (getattr(self, name) is not None):
                verb = "needs" if self.mode == name else "takes no"
                raise ValueError(f"mode {self.mode} {verb} {name}")
        return self

    def step(self, clip_fps: ArrayLike) -> Floats:
        """Return the distance between chosen frames, in frames of the clip."""
        if self.fps is None:
            return np.full(np.shape(clip_fps), float(self.stride or 1))
        return np.asarray(np.asarray(clip_fps, np.float64) / self.fps)

    def available(self, frames: ArrayLike, clip_fps: ArrayLike) -> IndexArray:
        """Return the number of frames that clips offer; the arguments broadcast against each other.

        Args:
            frames: number of frames of each clip.
            clip_fps: frames per second of each clip.
        """
        # The margin counts a frame at exactly the end on every platform.
        reach = (np.asarray(frames) - 1) / self.step(clip_fps) + 1e-6
        return np.floor(reach).astype(np.int64) + 1

    def starts(self, clip_frames: ArrayLike, clip_fps: ArrayLike, count: ArrayLike) -> IndexArray:
        """Return the number of possible first frames, at least 1; the arguments broadcast against each other.

        Args:
            clip_frames: number of frames of each clip.
            clip_fps: frames per second of each clip.
            count: number of frames to choose.
        """
        if self.mode == "all":
            return np.ones(np.broadcast_shapes(np.shape(clip_frames), np.shape(count)), np.int64)
        last = ((np.asarray(count) - 1) * self.step(clip_fps) + 0.5).astype(np.int64)
        return np.maximum(1, np.asarray(clip_frames) - last)

    def frames(
        self, words: str, clip_frames: int, clip_fps: float, count: int, times_s: Floats | None = None
    ) -> IndexArray:
        """Return the numbers of ``count`` frames, int64, rising; a pure function.

        Args:
            words: seed of the random choice; equal words choose equal frames.
            clip_frames: number of frames of the clip, enough by `available`.
            clip_fps: frames per second of the clip, on average.
            count: number of frames to choose.
            times_s: float64 [clip_frames]: begin of each frame of a clip of variable rate, seconds after the first;
                None for a constant rate.
        """
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "little")
        if times_s is not None and self.fps is not None:
            return _by_times(draw, np.arange(count) / self.fps, times_s)
        # As `starts` and `step`, of one clip: a stream calls this for every sample.
        step = float(self.stride or 1) if self.fps is None else clip_fps / self.fps
        starts = 1 if self.mode == "all" else max(1, clip_frames - int((count - 1) * step + 0.5))
        indices = draw % starts + np.floor(np.arange(count) * step + 0.5).astype(np.int64)
        return np.asarray(np.minimum(indices, clip_frames - 1))


def _by_times(draw: int, later_s: Floats, times_s: Floats) -> IndexArray:
    """Return the numbers of a random frame, and of those shown at given times after it, int64.

    A frame counts as shown from half a usual frame before its begin, as the nearest frame does at a constant rate.
    """
    early_s = float(np.median(np.diff(times_s))) / 2 if len(times_s) > 1 else 0.0
    starts = np.searchsorted(times_s, times_s[-1] + early_s - later_s[-1], side="right")
    begin_s = times_s[draw % max(1, int(starts))]
    return np.asarray(np.searchsorted(times_s, begin_s + later_s + early_s, side="right") - 1, np.int64)
