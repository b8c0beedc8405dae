"""How much two pictures differ, measured so that motion and exposure count little and content counts.

Structure is the high-passed luminance, compared by the peak of its normalised cross-correlation over small
shifts: blind to brightness and contrast, tolerant of pans and shakes. Colour is the distance of the colour
distributions of the four quarters of the picture: blind to motion inside a quarter. Pictures of one shot agree
in structure or in colour; pictures of two shots hardly ever do in either.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 64, 36

Floats = NDArray[np.float32]

_MAX_SHIFT = (8, 12)  # rows, columns: about a fifth of the picture
_HIGH_PASS_RADIUS = 3
_STRUCTURE_FLOOR = 4.0  # grey levels squared: the energy of coding noise in a flat picture
_BAR_LUMA = 16.0  # darker borders are letterbox or pillarbox bars
_COLOUR_BINS = 32
_COLOUR_SATURATION = 25.0  # grey levels of mean distance at which two colour distributions count as unlike

_YCC = np.array([[0.299, 0.587, 0.114], [-0.299, -0.587, 0.886], [0.701, -0.587, -0.114]], np.float32).T
_LOWEST = np.array([[0.0, -128.0, -128.0]], np.float32)
_ROWS, _COLUMNS = np.mgrid[:HEIGHT, :WIDTH]
_QUARTER = ((_ROWS >= HEIGHT // 2) * 2 + (_COLUMNS >= WIDTH // 2)).reshape(-1, 1)
_FIRST_BIN = (_QUARTER * 3 + np.arange(3)) * _COLOUR_BINS  # [pixels, 3]


class Features(NamedTuple):
    """The features of one frame.

    Attributes:
        contrast: Standard deviation of the luminance, grey levels.
        energy: Mean square of the high-passed luminance, grey levels squared, floor included.
        spectrum: Fourier transform of the high-passed luminance, scaled so that the correlation of a picture
            with itself is 1 less its share of the floor; [HEIGHT, WIDTH // 2 + 1] complex64.
        fine: High-passed luminance, scaled like the spectrum, [HEIGHT * WIDTH].
        layout: Luminance at half size less its mean, [HEIGHT // 2 * WIDTH // 2].
        colours: Cumulative distributions of Y, B - Y, R - Y in each quarter, [12 * bins], in grey levels per bin.
    """

    contrast: float
    energy: float
    spectrum: NDArray[np.complex64]
    fine: Floats
    layout: Floats
    colours: Floats


def features(frame: NDArray[np.uint8]) -> Features:
    """Features of a frame, [HEIGHT, WIDTH, 3] RGB."""
    ycc = frame.reshape(-1, 3).astype(np.float32) @ _YCC
    raw = ycc[:, 0].reshape(HEIGHT, WIDTH)
    luma = without_bars(raw)
    fine = high_pass(luma)
    energy = float(np.mean(fine * fine)) + _STRUCTURE_FLOOR
    fine /= np.sqrt(energy * fine.size)
    layout = raw.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).mean(axis=(1, 3)).ravel()
    width = 256 // _COLOUR_BINS
    bins = ((ycc - _LOWEST) / width).astype(np.intp).clip(0, _COLOUR_BINS - 1)
    counts = np.bincount((bins + _FIRST_BIN).ravel(), minlength=12 * _COLOUR_BINS)
    shares = counts.reshape(12, _COLOUR_BINS) * (4 / (WIDTH * HEIGHT))
    return Features(
        contrast=float(raw.std()),
        energy=energy,
        spectrum=np.fft.rfft2(fine).astype(np.complex64),
        fine=fine.ravel(),
        layout=layout - layout.mean(),
        colours=(shares.cumsum(axis=1) * width).astype(np.float32).ravel(),
    )


def without_bars(luma_HW: Floats) -> Floats:
    """Replace black bars at the border by the nearest picture row or column.

    Their edges would be the strongest structure of every shot, and the same in all of them. One more row or
    column goes with each bar, because scaling smears its edge.
    """
    lit = luma_HW > _BAR_LUMA
    rows, columns = np.flatnonzero(lit.any(axis=1)), np.flatnonzero(lit.any(axis=0))
    if len(rows) < HEIGHT // 4 or len(columns) < WIDTH // 8:
        return luma_HW
    top, bottom = _inside(int(rows[0]), int(rows[-1]), HEIGHT - 1)
    left, right = _inside(int(columns[0]), int(columns[-1]), WIDTH - 1)
    if (top, bottom, left, right) == (0, HEIGHT - 1, 0, WIDTH - 1):
        return luma_HW
    inner = luma_HW[top : bottom + 1, left : right + 1]
    return np.pad(inner, ((top, HEIGHT - 1 - bottom), (left, WIDTH - 1 - right)), mode="edge")


def _inside(first: int, last: int, end: int) -> tuple[int, int]:
    return (first + 1 if first > 0 else 0), (last - 1 if last < end else end)


def high_pass(luma_HW: Floats) -> Floats:
    """The luminance less its mean over a 7x7 box around each pixel."""
    radius, size = _HIGH_PASS_RADIUS, 2 * _HIGH_PASS_RADIUS + 1
    sums = np.pad(luma_HW, radius, mode="edge")
    sums = np.pad(sums, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    boxes = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    return luma_HW - boxes / np.float32(size**2)


def structure_difference(a: Features, b: Features) -> float:
    """How much the structure of two pictures differs, from 0 (the same, perhaps shifted) to about 1.

    Pictures without structure do not differ: the floor of both counts as structure they share.
    """
    correlation = np.fft.irfft2(a.spectrum * b.spectrum.conj(), s=(HEIGHT, WIDTH))
    rows, columns = _MAX_SHIFT
    by_row = np.maximum(correlation[: rows + 1].max(axis=0), correlation[-rows:].max(axis=0))
    peak = max(by_row[: columns + 1].max(), by_row[-columns:].max())
    return float(1 - peak - _STRUCTURE_FLOOR / np.sqrt(a.energy * b.energy))


def unshifted_difference(a: Features, b: Features) -> float:
    """`structure_difference` without the search over shifts: never less, and quick."""
    return float(1 - a.fine @ b.fine - _STRUCTURE_FLOOR / np.sqrt(a.energy * b.energy))


def colour_difference(a: Features, b: Features) -> float:
    """How much the colours of two pictures differ, from 0 to 1.

    The earth mover's distance of the distributions (in one dimension the area between their cumulative
    curves), mean over three channels and four quarters, relative to a distance that only a new scene has.
    """
    moved = float(np.abs(a.colours - b.colours).sum()) / 12
    return min(1.0, moved / _COLOUR_SATURATION)
