"""Shared sample of a clip, collected while the clip is cut; the input of all scores."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.still_edges import StillEdges

Floats = NDArray[np.float32]

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True, eq=False)
class ReadText:
    """Lines of text that OCR found in some pictures of a clip, evenly spaced.

    Attributes:
        pictures: Number of pictures that were read.
        lines: float32 [n, 7]: index of the picture; left, top, right and bottom of the line and its area, as shares of
            the picture's width, height and area; number of characters.
    """

    pictures: int
    lines: Floats

    def inside(self, left: float, top: float, right: float, bottom: float) -> "ReadText":
        """Return the text inside a part of the pictures, given by its edges, as shares of width and height."""
        width, height = right - left, bottom - top
        low, high = (left, top), (right, bottom)
        corners = np.clip(self.lines[:, 1:5].reshape(-1, 2, 2), low, high)
        areas = np.prod(self.lines[:, 3:5] - self.lines[:, 1:3], axis=1)
        visible = np.prod(corners[:, 1] - corners[:, 0], axis=1)
        shares = np.divide(visible, areas, out=np.zeros_like(visible), where=areas > 0)
        lines = np.column_stack(
            [
                self.lines[:, 0],
                ((corners - low) / (width, height)).reshape(-1, 4),
                self.lines[:, 5] * shares / (width * height),
                self.lines[:, 6] * shares,
            ]
        )
        return ReadText(self.pictures, lines[visible > 0].astype(np.float32))


@dataclass(frozen=True, eq=False)
class ClipSample:
    """Small pictures of a clip and per-frame measurements.

    Attributes:
        pictures: uint8 [n, h, w, 3] RGB of finished pictures, n > 0, evenly spaced, aspect kept.
        times_s: float64 [n], rising: display time of each picture, seconds after the clip's start.
        luma: float32 [frames]: mean luminance of every frame of the clip, 0 to 255.
        steps: float32 [frames]: mean absolute difference in luminance from the frame before, grey levels, at
            64x36 pixels; the first is 0.
        motion: float32 [frames]: mean displacement from `reelweave.curate.filters.vectors.MotionMeter`, picture
            diagonals per frame, NaN for unmeasured frames; None: nothing was measured.
        width: Width of the clip, pixels.
        height: Height of the clip, pixels.
        frames: Number of frames of the clip.
        fps: Frames per second of the clip's footage.
        duration_s: Duration of the clip.
        audio_dbfs: float32 [windows]: loudness of every 100 ms from
            `reelweave.curate.filters.sound.loudness_dbfs`; empty: no sound track; None: not measured.
        motion_local: float32 [frames]: motion relative to the camera, in the form of ``motion``.
        vectors_missing: True when the codec has motion vectors, but exported none.
        text: Text that OCR found; None: not read.
        edges: Edges that stay, at full size; None: not looked at.
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
    text: ReadText | None = None
    edges: StillEdges | None = None

    @cached_property
    def grey(self) -> Floats:
        """Luminance of the pictures (Rec. 601), [n, h, w], 0 to 255."""
        grey = np.empty(self.pictures.shape[:3], np.float32)
        for picture, out in zip(self.pictures, grey, strict=True):  # one at a time stays in the cache
            np.matmul(picture.astype(np.float32), _LUMA, out=out)
        return grey


def shape_scores(sample: ClipSample) -> dict[str, float]:
    """Return ``duration_s``, ``short_side_px``, ``aspect`` (width / height) and ``fps``."""
    return {
        "duration_s": sample.duration_s,
        "short_side_px": float(min(sample.width, sample.height)),
        "aspect": sample.width / sample.height,
        "fps": sample.fps,
    }
