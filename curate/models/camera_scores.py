"""Movement of the camera over a clip: pan, tilt, zoom, roll and shake, from evenly spaced pictures.

Windows of neighbouring pictures are matched by phase correlation. An affine field is fitted that most of them
follow (`reelweave.curate.filters.vectors`), so things that move by themselves count little. What lasts for a second is
a movement; what changes faster is shake.
"""

from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from reelweave.curate.filters.flow import window_motion
from reelweave.curate.filters.sample import Floats
from reelweave.curate.filters.vectors import camera_field

_LASTS_S = 1.0
_DEVIATIONS = 4
"""Median deviations beyond which a match has failed."""

_MIN_WINDOWS = 6
"""Windows with structure that a fit needs; of flat walls and dark skies nothing can be told."""

_MOST_APART_PX = 1.5
_MIN_AGREEING = 0.5
"""Share of the windows that must follow the fitted field; else the match failed, or what moves is no camera."""

_MIN_MEASURED = 0.5
"""Share of the intervals that must be measured."""


def camera_scores(grey: Floats, pictures_per_s: float) -> dict[str, float]:
    """Return the movement of the camera; empty where it cannot be told: flat walls, dark skies, one picture.

    ``camera_pan`` and ``camera_tilt`` are in picture widths and heights per second, ``camera_roll`` in
    degrees per second. ``camera_zoom`` is in the natural logarithm of the size per second. All are means of
    what lasts, without sign. ``camera_shake`` is the root mean square of the rest, in picture diagonals per
    second.

    Args:
        grey: Luminance of evenly spaced pictures, [n, h, w].
        pictures_per_s: Their rate; about 8.
    """
    height, width = grey.shape[1:]
    fields = [_field(before, after) for before, after in pairwise(grey)]
    measured = np.array([field for field in fields if field is not None])
    if not len(measured) or len(measured) < _MIN_MEASURED * len(fields):
        return {}
    length = min(max(1, round(_LASTS_S * pictures_per_s)), len(measured))
    moved = _without_failures(measured * pictures_per_s, length)
    lasting = _smooth(moved, length)
    right, down, larger, turned = np.abs(lasting).mean(axis=0)
    rest = (moved - lasting)[:, :2] / np.hypot(height, width)
    return {
        "camera_pan": float(right / width),
        "camera_tilt": float(down / height),
        "camera_zoom": float(larger),
        "camera_roll": float(np.degrees(turned)),
        "camera_shake": float(np.sqrt((rest**2).sum(axis=1).mean())),
    }


def _field(before: Floats, after: Floats) -> NDArray[np.float64] | None:
    """Return how far a picture moved right and down (pixels), grew, turned (radians); None where it cannot be told."""
    windows = window_motion(before, after)
    structured = windows.structured
    if structured.sum() < _MIN_WINDOWS:
        return None
    moved, share = windows.shift + windows.moved[structured], np.full(structured.sum(), 1 / structured.sum())
    positions = windows.places[structured]
    field = camera_field(positions, moved, share)
    residuals_px = np.hypot(*(moved - field[0] - positions @ field[1:]).T)
    if (residuals_px <= _MOST_APART_PX).mean() < _MIN_AGREEING:
        return None
    (right, down), (across_right, across_down), (along_right, along_down) = field
    height, width = before.shape
    larger = (across_right / width + along_down / height) / 2
    turned = (across_down / width - along_right / height) / 2
    return np.array([right, down, larger, turned])


def _without_failures(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return rows, [n, k], limited to a few usual deviations from their running median: no failed match counts."""
    middle = np.median(sliding_window_view(values, length, axis=0), axis=-1)[_first(len(values), length)]
    max_deviation = _DEVIATIONS * np.median(np.abs(values - middle), axis=0)
    limited: NDArray[np.float64] = middle + (values - middle).clip(-max_deviation, max_deviation)
    return limited


def _smooth(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the running mean of ``length`` rows, [n, k]."""
    sums = np.vstack([np.zeros((1, values.shape[1])), values.cumsum(axis=0)])
    first = _first(len(values), length)
    smooth: NDArray[np.float64] = (sums[first + length] - sums[first]) / length
    return smooth


def _first(count: int, length: int) -> NDArray[np.intp]:
    """Return the first row of the window around each row; windows at both ends are moved inside."""
    return (np.arange(count) - length // 2).clip(0, count - length)
