"""Motion between the pictures of a sample, for codecs whose motion vectors are not exported.

Phase correlation of the whole picture gives the camera's shift; then windows of the shifted picture give the
remaining motion. The cost does not depend on codec or content.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.sample import Floats
from reelweave.curate.filters.vectors import camera_motion

_LONG_SIDE_PX = 128  # approximate long side of the compared pictures
_WINDOW_PX = 32
_STRIDE_PX = 24
_MIN_CONTRAST = 2.0  # grey levels; flatter windows count as following the camera
_CELL_PX = 4
_STILL = 1.0  # maximum mean difference of a still cell, grey levels


@dataclass(frozen=True)
class PictureMotion:
    """Motion between neighbouring pictures, float32 [n - 1] each, in picture diagonals per interval.

    Attributes:
        motion: mean over windows.
        motion_local: mean relative to the camera.
        fastest: motion of the fastest window.
    """

    motion: Floats
    motion_local: Floats
    fastest: Floats


def flow(grey: Floats) -> PictureMotion:
    """Measure the motion between neighbouring pictures.

    Displacements beyond about a third of the picture are not measured correctly. For a window the limit is
    half its size after compensation of the camera's shift.

    Args:
        grey: Luminance, [n, h, w].
    """
    halved = _downscale(grey)
    motion, local, fastest = [], [], []
    for before, after in pairwise(halved):
        windows = window_motion(before, after)
        # A thing that moves may fill only a part of its window.
        positions, moved = windows.places, windows.shift + windows.moved * windows.changed[:, None]
        rest = moved - camera_motion(positions, moved, np.full(len(positions), 1 / len(positions)))
        lengths = np.hypot(*moved.T)
        motion.append(float(lengths.mean()))
        fastest.append(float(lengths.max()))
        local.append(float(np.hypot(*rest.T).mean()))
    diagonal = np.float32(np.hypot(*halved.shape[1:]))
    return PictureMotion(*(np.array(each, np.float32) / diagonal for each in (motion, local, fastest)))


class Windows(NamedTuple):
    """Displacements of windows between two pictures, to the right and down, pixels.

    Attributes:
        places: Centres of the windows, [n, 2], as shares of width and height from the middle.
        shift: Displacement of the whole picture, [2], whole pixels.
        moved: Displacement of each window beside that, [n, 2]; 0 where nothing changed.
        changed: Share of each window that changed beside that, [n].
        structured: Windows with structure, [n]; of the others nothing can be told.
    """

    places: NDArray[np.float64]
    shift: NDArray[np.float64]
    moved: NDArray[np.float64]
    changed: Floats
    structured: NDArray[np.bool_]


def window_motion(before: Floats, after: Floats) -> Windows:
    """Measure the displacement of windows between two small pictures, [h, w]."""
    height, width = before.shape
    window = min(_WINDOW_PX, height, width)
    tops, lefts = _starts(height, window), _starts(width, window)
    # Centres of the windows, from the middle of the picture.
    positions = np.array(
        [
            ((left + window / 2) / width - 0.5, (top + window / 2) / height - 0.5)
            for top in tops
            for left in lefts
        ]
    )
    picture_taper, part = _taper(height, width), _taper(window, window)
    # The whole picture's displacement first, so that windows are compared where their content went.
    down, right = _shift(before[None], after[None], picture_taper)[0].round().astype(int)
    if _difference(before, after, down, right) >= _difference(before, after, 0, 0):
        down = right = 0
    # Then what each window has left of motion; windows without structure tell nothing.
    a, b = _windows(before, after, tops, lefts, window, down, right)
    structured = a.std(axis=(1, 2)) >= _MIN_CONTRAST
    changed = _changed_share(a, b) * structured
    moved = np.zeros((len(positions), 2))
    if (visible := changed > 0).any():
        moved[visible] = _shift(a[visible], b[visible], part)
    return Windows(positions, np.array([right, down], np.float64), moved[:, ::-1], changed, structured)


def _downscale(grey: Floats) -> Floats:
    """Downscale the pictures by a whole factor to a long side of about `_LONG_SIDE_PX`."""
    factor = min(max(1, round(max(grey.shape[1:]) / _LONG_SIDE_PX)), *grey.shape[1:])
    count, height, width = grey.shape
    height, width = height // factor, width // factor
    parts = grey[:, : height * factor, : width * factor].reshape(count, height, factor, width, factor)
    smaller: Floats = parts.mean(axis=4).mean(axis=2)
    return smaller


def _starts(size: int, window: int) -> list[int]:
    """Return window positions that cover a side evenly and overlap by about half."""
    count = max(1, round((size - window) / _STRIDE_PX) + 1)
    return [round(index * (size - window) / max(1, count - 1)) for index in range(count)]


def _taper(height: int, width: int) -> Floats:
    taper = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    return taper.astype(np.float32)


def _shift(before: Floats, after: Floats, taper: Floats) -> NDArray[np.float64]:
    """Return the rows and columns by which each picture moved, [n, 2]: the refined peak of the phase correlation."""
    a, b = (
        np.fft.rfft2((picture - picture.mean(axis=(1, 2), keepdims=True)) * taper)
        for picture in (before, after)
    )
    cross = b * a.conj()
    size = np.abs(cross)
    # Whitening only above the noise of 8-bit pictures: full whitening follows the grain, none follows the shading.
    cross /= size + 0.05 * size.mean(axis=(1, 2), keepdims=True) + 1e-6
    peaks = np.fft.irfft2(cross, s=before.shape[1:])
    count, height, width = peaks.shape
    best = peaks.reshape(count, -1).argmax(axis=1)
    rows, columns = best // width, best % width
    at = np.arange(count)
    shifts = np.empty((count, 2))
    for axis, peak, length in ((0, rows, height), (1, columns, width)):
        values = [
            peaks[at, (rows + step * (axis == 0)) % height, (columns + step * (axis == 1)) % width]
            for step in (-1, 0, 1)
        ]
        curve = values[0] - 2 * values[1] + values[2]
        slope = (values[0] - values[2]) / 2
        part = np.divide(slope, curve, out=np.zeros(count), where=curve < 0)
        shifts[:, axis] = (peak + length // 2) % length - length // 2 + part.clip(-0.5, 0.5)
    return shifts


def _changed_share(a: Floats, b: Floats) -> Floats:
    """Return the changed share of each window [n, window, window], [n]: moving things may fill only a part."""
    side = min(_CELL_PX, a.shape[1])
    count, size = a.shape[0], a.shape[1] // side * side
    cells = np.abs(a - b)[:, :size, :size].reshape(count, size // side, side, -1, side)
    return np.asarray((cells.mean(axis=(2, 4)) >= _STILL).mean(axis=(1, 2)), np.float32)


def _difference(before: Floats, after: Floats, down: int, right: int) -> float:
    """Return the mean difference of two pictures in their overlap after a shift of the first, grey levels."""
    height, width = before.shape
    if abs(down) > height // 2 or abs(right) > width // 2:
        return np.inf
    a = before[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    b = after[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]
    return float(np.abs(a - b).mean())


def _windows(
    before: Floats, after: Floats, tops: list[int], lefts: list[int], window: int, down: int, right: int
) -> tuple[Floats, Floats]:
    """Return windows of both pictures, displaced by the camera's shift in the second, each [n, window, window]."""
    height, width = before.shape
    a, b = [], []
    for top in tops:
        for left in lefts:
            # A window that would leave the second picture is moved in both.
            to_top = min(max(top + down, 0), height - window)
            to_left = min(max(left + right, 0), width - window)
            from_top = min(max(to_top - down, 0), height - window)
            from_left = min(max(to_left - right, 0), width - window)
            a.append(before[from_top : from_top + window, from_left : from_left + window])
            b.append(after[to_top : to_top + window, to_left : to_left + window])
    return np.stack(a), np.stack(b)
