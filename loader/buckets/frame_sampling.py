"""Which frames of a clip are trained on."""

import hashlib
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, Field, PositiveInt, model_validator

from loader.base.arrays import Floats, Places


class FrameSampling(BaseModel, frozen=True, extra="forbid"):
    """How a bucket's frames are chosen from a clip that has more.

    window: as many frames in a row, from a random one on. all: from the first one on. stride: every ``stride``-th from
    a random one on. fps: as a video of ``fps`` frames per second would show them, from a random one on; where the clip
    has fewer per second, frames repeat.
    """

    mode: Literal["window", "all", "stride", "fps"] = Field(
        "window", description="window, all, stride or fps"
    )
    stride: PositiveInt | None = Field(None, description="with mode stride: frames from one to the next")
    fps: float | None = Field(None, gt=0, le=1000, description="with mode fps: frames per second")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in ("stride", "fps"):
            if (self.mode == name) != (getattr(self, name) is not None):
                wanted = "needs" if self.mode == name else "takes no"
                raise ValueError(f"mode {self.mode} {wanted} {name}")
        return self

    def step(self, clip_fps: ArrayLike) -> Floats:
        """Frames of the clip from one chosen frame to the next."""
        if self.fps is None:
            return np.full(np.shape(clip_fps), float(self.stride or 1))
        return np.asarray(np.asarray(clip_fps, np.float64) / self.fps)

    def available(self, frames: ArrayLike, clip_fps: ArrayLike) -> Places:
        """How many frames clips offer; the arguments broadcast against each other.

        Args:
            frames: of the clips.
            clip_fps: their frames per second.
        """
        # A frame at exactly the end counts, whichever way the platform rounds.
        reach = (np.asarray(frames) - 1) / self.step(clip_fps) + 1e-6
        return np.floor(reach).astype(np.int64) + 1

    def starts(self, clip_frames: ArrayLike, clip_fps: ArrayLike, count: ArrayLike) -> Places:
        """From how many frames on a choice may begin, at least 1; the arguments broadcast against each other.

        Args:
            clip_frames: of the clips.
            clip_fps: their frames per second.
            count: frames wanted.
        """
        if self.mode == "all":
            return np.ones(np.broadcast_shapes(np.shape(clip_frames), np.shape(count)), np.int64)
        last = ((np.asarray(count) - 1) * self.step(clip_fps) + 0.5).astype(np.int64)
        return np.maximum(1, np.asarray(clip_frames) - last)

    def frames(self, words: str, clip_frames: int, clip_fps: float, count: int) -> Places:
        """The numbers of ``count`` frames, int64, rising; a pure function.

        Args:
            words: what fixes the random choice; the same words choose the same frames.
            clip_frames: of the clip; `available` says whether they are enough.
            clip_fps: frames per second of the clip.
            count: wanted.
        """
        step = float(self.step(clip_fps))
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        first = int.from_bytes(digest, "little") % int(self.starts(clip_frames, clip_fps, count))
        numbers = first + np.floor(np.arange(count) * step + 0.5).astype(np.int64)
        return np.asarray(np.minimum(numbers, clip_frames - 1))
