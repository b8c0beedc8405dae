"""Clips that a sampled video can be seen to show, and whether it does.

A video shows a clip if it comes nearer to it than every answer without learning: another clip, or a still picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.dataset import Dataset
from reelweave.pipelines.evaluation.nearest import MOST_CLIPS, clip_frames, mean_colours

MARGIN_DB = 1.0
"""Decibels by which a video must come nearer than an answer without learning."""


@dataclass(frozen=True)
class Shown:
    """Likeness of a video to a clip: PSNR of the mean colours of squares, frame by frame.

    Attributes:
        psnr_db: likeness of the video.
        unlearned_db: likeness of the best answer without learning.
    """

    psnr_db: float
    unlearned_db: float

    @property
    def is_shown(self) -> bool:
        """True if the video shows the clip."""
        return self.psnr_db >= self.unlearned_db + MARGIN_DB


class FirstFrames:
    """First frames of a dataset's clips, in one size.

    Args:
        dataset: the dataset.
        rows: clips to compare, at most `MOST_CLIPS`, with as many frames at least.
        frames: number of frames.
        size: height and width in pixels.
    """

    def __init__(self, dataset: Dataset, rows: Sequence[int], frames: int, size: tuple[int, int]) -> None:
        self._captions = {row: dataset.row(row)["caption"] or "" for row in rows[:MOST_CLIPS]}
        self._clips = {row: mean_colours(clip_frames(dataset, row, size, frames)) for row in self._captions}

    def distinct(self, count: int) -> list[int]:
        """Return clips of different captions that no answer without learning comes near to, the clearest first."""
        chosen: dict[str, int] = {}
        for row in sorted(self._clips, key=self._unlearned_likeness):
            chosen.setdefault(self._captions[row], row)
        return list(chosen.values())[:count]

    def shown(self, video_CTHW: NDArray[np.uint8], row: int) -> Shown:
        """Compare a video of the size and number of frames with a clip."""
        return Shown(_psnr(mean_colours(video_CTHW), self._clips[row]), self._unlearned_likeness(row))

    def _unlearned_likeness(self, row: int) -> float:
        """Return the likeness to a clip of the nearest clip with another caption, or of the best still picture.

        The best still has the mean of the frames: the first frame, a blurred one and the mean of all clips are worse.
        """
        clip_CTHW, caption = self._clips[row], self._captions[row]
        still_CTHW = np.broadcast_to(clip_CTHW.mean(axis=1, keepdims=True), clip_CTHW.shape)
        other_clips = [clip for other, clip in self._clips.items() if self._captions[other] != caption]
        return max(_psnr(candidate, clip_CTHW) for candidate in (still_CTHW, *other_clips))


def _psnr(video_CTHW: NDArray[np.float32], clip_CTHW: NDArray[np.float32]) -> float:
    return float(-10 * np.log10(max(float(np.square(video_CTHW - clip_CTHW).mean()), 1e-10)))
