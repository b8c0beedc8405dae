"""Picture difference measures that react to content and hardly to motion and exposure.

Structure is the high-passed luminance, compared by the peak of its normalised cross-correlation over small
shifts. That ignores brightness and contrast and tolerates pans and shakes. Colour is the distance of the
colour distributions of the four quarters of the picture, which ignores motion inside a quarter. Pictures of
one shot agree in structure or in colour; pictures of two shots hardly ever do in either.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 64, 36
STRUCTURE_FLOOR = 4.0
"""Energy of coding noise in a flat picture, grey levels squared."""

Floats = NDArray[np.float32]

_MAX_SHIFT = (8, 12)  # rows, columns: about a fifth of the picture
_HIGH_PASS_RADIUS = 3
_BAR_LUMA = 16.0  # darker borders are letterbox or pillarbox bars
_COLOUR_BINS = 32
_BIN_WIDTH = 256 // _COLOUR_BINS
_COLOUR_WEIGHT = 0.2  # weight of a full change of colour, relative to structure
_COLOUR_SATURATION = 25.0  # mean distance at which two colour distributions differ fully, grey levels

_ROWS, _COLUMNS = np.mgrid[:HEIGHT, :WIDTH]
_QUARTER = (_ROWS >= HEIGHT // 2) * 2 + (_COLUMNS >= WIDTH // 2)
_FIRST_BIN = ((_QUARTER * 3 + np.arange(3)[:, None, None]) * _COLOUR_BINS).astype(
    np.float32
)  # [3, rows, columns]
# Thousandths of Y, B - Y and R - Y; the half keeps whole numbers off bin edges, so that rounding moves none.
_TO_CHANNELS = np.array([[299, 587, 114], [-299, -587, 886], [701, -587, -114]], np.float32)
_TO_BINS = np.array([0.5, 128_000.5, 128_000.5], np.float32)[:, None, None]


def _inverse(shifts: NDArray[np.intp], size: int, weights: NDArray[np.float64]) -> NDArray[np.complex64]:
    """Return the rows of the inverse Fourier transform for these shifts, [shift, frequency]."""
    turns = np.outer(shifts, np.arange(len(weights))) / size
    rows: NDArray[np.complex64] = (np.exp(2j * np.pi * turns) * weights / size).astype(np.complex64)
    return rows


# Only correlations at small shifts are needed: two small products are cheaper than the whole transform.
_INVERSE_ROWS = _inverse(np.arange(-_MAX_SHIFT[0], _MAX_SHIFT[0] + 1), HEIGHT, np.ones(HEIGHT))
_INVERSE_COLUMNS = _inverse(
    np.arange(-_MAX_SHIFT[1], _MAX_SHIFT[1] + 1),
    WIDTH,
    np.r_[1, np.full(WIDTH // 2 - 1, 2), 1],  # each column of a half spectrum stands for its mirror image too
).T.copy()


@dataclass(frozen=True, eq=False)
class Features:
    """Structure and colour features of one frame.

    Attributes:
        contrast: Standard deviation of the luminance, grey levels.
        energy: Mean square of the high-passed luminance plus the floor, grey levels squared.
        fine: High-passed luminance, scaled so that the correlation of a picture with itself is 1 minus its
            share of the floor, [HEIGHT * WIDTH].
        layout: Luminance at half size minus its mean, [HEIGHT // 2 * WIDTH // 2].
        colours: Cumulative distributions of Y, B - Y, R - Y in each quarter, [12 * bins], in grey levels per
            bin.
    """

    contrast: float
    energy: float
    fine: Floats
    layout: Floats
    colours: Floats

    @cached_property
    def spectrum(self) -> NDArray[np.complex64]:
        """Fourier transform of `fine`, [HEIGHT, WIDTH // 2 + 1]; computed on demand, for few frames."""
        return np.fft.rfft2(self.fine.reshape(HEIGHT, WIDTH)).astype(np.complex64)


def features(frames: NDArray[np.uint8]) -> list[Features]:
    """Return the features of frames [n, HEIGHT, WIDTH, 3] RGB; results do not depend on the batch."""
    # In thousandths of a grey level all sums are whole numbers, exact in float32 in any order.
    pixels = frames.reshape(len(frames), -1, 3).astype(np.float32)
    channels = np.matmul(_TO_CHANNELS, pixels.transpose(0, 2, 1)).reshape(-1, 3, HEIGHT, WIDTH)
    raw = channels[:, 0] * np.float32(0.001)
    fine = high_pass(without_bars(raw))
    energy = np.einsum("nhw,nhw->n", fine, fine) / (HEIGHT * WIDTH) + np.float32(STRUCTURE_FLOOR)
    fine /= np.sqrt(energy * (HEIGHT * WIDTH))[:, None, None]
    halved = raw[:, ::2] + raw[:, 1::2]
    layout = ((halved[:, :, ::2] + halved[:, :, 1::2]) * np.float32(0.25)).reshape(len(frames), -1)
    layout -= layout.mean(axis=1, keepdims=True)
    contrast = raw.reshape(len(frames), -1).std(axis=1)
    colours = _cumulative(channels)
    fine = fine.reshape(len(frames), -1)
    return [
        Features(float(contrast[n]), float(energy[n]), fine[n], layout[n], colours[n])
        for n in range(len(frames))
    ]


def _cumulative(bins: Floats) -> Floats:
    """Return the distributions of three channels [n, 3, HEIGHT, WIDTH], in thousandths, in each quarter.

    The channels are overwritten.
    """
    count = len(bins)
    bins += _TO_BINS
    bins *= np.float32(0.001 / _BIN_WIDTH)
    np.clip(bins, 0, _COLOUR_BINS - 1, out=bins)
    bins += _FIRST_BIN  # as far as whole numbers were from bin edges, this rounds none up to the next
    bin_indices = bins.astype(np.uint32).reshape(count, -1)
    bin_indices += (np.arange(count, dtype=np.uint32) * (12 * _COLOUR_BINS))[:, None]
    counts = np.bincount(bin_indices.ravel(), minlength=count * 12 * _COLOUR_BINS)
    shares = counts.reshape(count, 12, _COLOUR_BINS).cumsum(axis=2) * (4 * _BIN_WIDTH / (WIDTH * HEIGHT))
    return shares.astype(np.float32).reshape(count, -1)


def without_bars(luma_NHW: Floats) -> Floats:
    """Replace black bars at the border by the nearest picture row or column.

    Edges of bars would be the strongest structure of every shot, and identical in all of them. One more row
    or column goes with each bar, because scaling smears its edge.
    """
    lit = luma_NHW > _BAR_LUMA
    rows, columns = np.asarray(lit.any(axis=2)), np.asarray(lit.any(axis=1))
    barless = rows[:, 0] & rows[:, -1] & columns[:, 0] & columns[:, -1]
    if barless.all():
        return luma_NHW
    filled = luma_NHW.copy()
    for n in np.flatnonzero(~barless):
        filled[n] = _without_bars(luma_NHW[n], np.flatnonzero(rows[n]), np.flatnonzero(columns[n]))
    return filled


def _without_bars(luma_HW: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Floats:
    if len(rows) < HEIGHT // 4 or len(columns) < WIDTH // 8:
        return luma_HW
    top, bottom = _inside(int(rows[0]), int(rows[-1]), HEIGHT - 1)
    left, right = _inside(int(columns[0]), int(columns[-1]), WIDTH - 1)
    inner = luma_HW[top : bottom + 1, left : right + 1]
    return np.pad(inner, ((top, HEIGHT - 1 - bottom), (left, WIDTH - 1 - right)), mode="edge")


def _inside(first: int, last: int, end: int) -> tuple[int, int]:
    return (first + 1 if first > 0 else 0), (last - 1 if last < end else end)


def high_pass(luma_NHW: Floats) -> Floats:
    """Subtract the mean of a 7x7 box around each pixel from the luminance."""
    radius = _HIGH_PASS_RADIUS
    count, height, width = luma_NHW.shape
    padded: Floats = np.empty((count, height + 2 * radius, width + 2 * radius), np.float32)
    padded[:, radius:-radius, radius:-radius] = luma_NHW
    repeat_edges(padded.transpose(1, 2, 0), (radius, radius))
    pairs = padded[:, :-1] + padded[:, 1:]
    sums = pairs[:, :-5] + pairs[:, 2:-3]
    sums += pairs[:, 4:-1]
    sums += padded[:, 6:]
    pairs = sums[:, :, :-1] + sums[:, :, 1:]
    across = pairs[:, :, :-5] + pairs[:, :, 2:-3]
    across += pairs[:, :, 4:-1]
    across += sums[:, :, 6:]
    across *= np.float32(1 / (2 * radius + 1) ** 2)
    return np.subtract(luma_NHW, across, out=across)


def repeat_edges(padded_HWN: Floats, by: tuple[int, int]) -> None:
    """Fill the border of pictures, so many rows and columns, with their edges, faster than `numpy.pad`."""
    rows, columns = by
    padded_HWN[:, :columns] = padded_HWN[:, columns : columns + 1]
    padded_HWN[:, -columns:] = padded_HWN[:, -columns - 1 : -columns]
    padded_HWN[:rows] = padded_HWN[rows : rows + 1]
    padded_HWN[-rows:] = padded_HWN[-rows - 1 : -rows]


def structure_difference(a: Features, b: Features) -> float:
    """Return the difference in structure of two pictures, from 0 (the same, possibly shifted) to about 1.

    Pictures without structure do not differ: the floor of both counts as shared structure.
    """
    correlation = (_INVERSE_ROWS @ (a.spectrum * b.spectrum.conj()) @ _INVERSE_COLUMNS).real
    return float(1 - correlation.max() - STRUCTURE_FLOOR / math.sqrt(a.energy * b.energy))


def colour_difference(a: Features, b: Features) -> float:
    """Return the difference in colour of two pictures, from 0 to 1.

    This is the earth mover's distance of the distributions, in one dimension the area between their
    cumulative curves. It is the mean over three channels and four quarters, relative to the distance of a new
    scene.
    """
    moved = float(np.abs(a.colours - b.colours).sum()) / 12
    return min(1.0, moved / _COLOUR_SATURATION)


def dissimilarity(a: Features, b: Features) -> float:
    """Return the difference of two pictures, mostly in structure: 0 to about 1.2."""
    return structure_difference(a, b) + _COLOUR_WEIGHT * colour_difference(a, b)
