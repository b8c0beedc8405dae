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

from curate.shots.colour.arithmetic import square_sum, sum_of
from loader.base.compiled import compiled

WIDTH, HEIGHT = 64, 36
STRUCTURE_FLOOR = 4.0
"""Energy of coding noise in a flat picture, grey levels squared."""

Floats = NDArray[np.float32]

_MAX_SHIFT = (8, 12)  # rows, columns: about a fifth of the picture
_HIGH_PASS_RADIUS = 3
_BAR_LUMA = np.float32(16)  # darker borders are letterbox or pillarbox bars
_COLOUR_BINS = 32
_BIN_WIDTH = 256 // _COLOUR_BINS
_COLOUR_WEIGHT = 0.2  # weight of a full change of colour, relative to structure
_COLOUR_SATURATION = 25.0  # mean distance at which two colour distributions differ fully, grey levels

# Thousandths of Y, B - Y and R - Y begin here; the half keeps whole numbers off bin edges, so that rounding moves none.
_FIRST_LUMA, _FIRST_CHROMA = np.float32(0.5), np.float32(128_000.5)
_BINS_PER_THOUSANDTH = np.float32(0.001 / _BIN_WIDTH)
_LAST_BIN = np.float32(_COLOUR_BINS - 1)
_ZERO = np.float32(0)
_THOUSANDTH, _QUARTER = np.float32(0.001), np.float32(0.25)
_FLOOR = np.float32(STRUCTURE_FLOOR)
_SHARE_OF_COUNT = 4 * _BIN_WIDTH / (WIDTH * HEIGHT)
_BOX_SHARE = np.float32(1 / (2 * _HIGH_PASS_RADIUS + 1) ** 2)


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
    count = len(frames)
    fine = np.empty((count, HEIGHT * WIDTH), np.float32)
    layout = np.empty((count, HEIGHT // 2 * WIDTH // 2), np.float32)
    colours = np.empty((count, 12 * _COLOUR_BINS), np.float32)
    levels = np.empty((count, 2), np.float32)
    for n, frame in enumerate(np.ascontiguousarray(frames)):
        _measure(frame, fine[n], layout[n], colours[n], levels[n])
    return [
        Features(contrast, energy, fine[n], layout[n], colours[n])
        for n, (contrast, energy) in enumerate(levels.tolist())
    ]


@compiled
def _measure(frame: NDArray[np.uint8], fine: Floats, layout: Floats, colours: Floats, levels: Floats) -> None:
    """Write the arrays of `Features`, and contrast and energy, of a frame."""
    luma = np.empty((HEIGHT, WIDTH), np.float32)
    _count(frame, luma, colours)
    for row in range(HEIGHT // 2):
        for column in range(WIDTH // 2):
            left = luma[2 * row, 2 * column] + luma[2 * row + 1, 2 * column]
            right = luma[2 * row, 2 * column + 1] + luma[2 * row + 1, 2 * column + 1]
            layout[row * (WIDTH // 2) + column] = (left + right) * _QUARTER
    mean = sum_of(layout) / np.float32(len(layout))
    for pixel in range(len(layout)):
        layout[pixel] -= mean
    flat = luma.reshape(-1)
    mean = sum_of(flat) / np.float32(len(flat))
    for pixel in range(len(flat)):
        fine[pixel] = (flat[pixel] - mean) * (flat[pixel] - mean)
    levels[0] = np.sqrt(sum_of(fine) / np.float32(len(fine)))
    _fill_bars(luma)
    _subtract_means(luma, fine.reshape(HEIGHT, WIDTH))
    energy = square_sum(fine) / np.float32(len(fine)) + _FLOOR
    length = np.sqrt(energy * np.float32(len(fine)))
    for pixel in range(len(fine)):
        fine[pixel] /= length
    levels[1] = energy


@compiled
def _count(frame: NDArray[np.uint8], luma: Floats, colours: Floats) -> None:
    """Write the luminance of a frame and its colour distributions."""
    # Two tables in turn, since neighbouring pixels often share a bin, and a count must be stored before the next.
    counts = np.zeros((2, 12 * _COLOUR_BINS), np.int32)
    places = np.empty((3, WIDTH), np.int32)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            red = np.int32(frame[row, column, 0])
            green = np.int32(frame[row, column, 1])
            blue = np.int32(frame[row, column, 2])
            # In thousandths of a grey level all sums are whole numbers, exact in float32.
            grey = np.int32(299) * red + np.int32(587) * green + np.int32(114) * blue
            luma[row, column] = np.float32(grey) * _THOUSANDTH
            places[0, column] = _bin(np.float32(grey) + _FIRST_LUMA)
            places[1, column] = _bin(np.float32(np.int32(1000) * blue - grey) + _FIRST_CHROMA)
            places[2, column] = _bin(np.float32(np.int32(1000) * red - grey) + _FIRST_CHROMA)
        for half in range(2):
            quarter = (row >= HEIGHT // 2) * 2 + half
            for channel in range(3):
                first = (quarter * 3 + channel) * _COLOUR_BINS
                for column in range(half * WIDTH // 2, (half + 1) * WIDTH // 2, 2):
                    counts[0, first + places[channel, column]] += 1
                    counts[1, first + places[channel, column + 1]] += 1
    for distribution in range(12):
        below = 0
        for place in range(distribution * _COLOUR_BINS, (distribution + 1) * _COLOUR_BINS):
            below += counts[0, place] + counts[1, place]
            colours[place] = np.float32(below * _SHARE_OF_COUNT)


@compiled
def _bin(thousandths: np.float32) -> np.int32:
    place = thousandths * _BINS_PER_THOUSANDTH
    place = place if place > _ZERO else _ZERO
    return np.int32(place if place < _LAST_BIN else _LAST_BIN)


def without_bars(luma_NHW: Floats) -> Floats:
    """Replace black bars at the border by the nearest picture row or column.

    Edges of bars would be the strongest structure of every shot, and identical in all of them. One more row
    or column goes with each bar, because scaling smears its edge.
    """
    filled = luma_NHW.copy()
    for luma in filled:
        _fill_bars(luma)
    return filled


@compiled
def _fill_bars(luma: Floats) -> None:
    """Do as `without_bars` for a picture, in place."""
    rows, columns = np.zeros(HEIGHT, np.float32), np.zeros(WIDTH, np.float32)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            value = luma[row, column]
            columns[column] = value if value > columns[column] else columns[column]
            rows[row] = value if value > rows[row] else rows[row]
    if _lit(rows) < HEIGHT // 4 or _lit(columns) < WIDTH // 8:
        return
    top, bottom = _inside(rows)
    left, right = _inside(columns)
    for row in range(HEIGHT):
        inside = min(max(row, top), bottom)
        for column in range(WIDTH):
            # What is read is inside the bars, and is not written before.
            luma[row, column] = luma[inside, min(max(column, left), right)]


@compiled
def _lit(brightest: Floats) -> int:
    """Return how many lines are no bars, by the brightest pixel of each."""
    count = 0
    for value in brightest:
        count += value > _BAR_LUMA
    return count


@compiled
def _inside(brightest: Floats) -> tuple[int, int]:
    """Return the first and the last line inside bars."""
    end = len(brightest) - 1
    first, last = 0, end
    while brightest[first] <= _BAR_LUMA:
        first += 1
    while brightest[last] <= _BAR_LUMA:
        last -= 1
    return (first + 1 if first > 0 else 0), (last - 1 if last < end else end)


def high_pass(luma_NHW: Floats) -> Floats:
    """Subtract the mean of a 7x7 box around each pixel from the luminance."""
    passed = np.empty_like(luma_NHW)
    for luma, to in zip(luma_NHW, passed, strict=True):
        _subtract_means(luma, to)
    return passed


@compiled
def _subtract_means(luma: Floats, passed: Floats) -> None:
    """Do as `high_pass` for a picture, whose edge is repeated outwards."""
    radius = _HIGH_PASS_RADIUS
    padded = np.empty((HEIGHT + 2 * radius, WIDTH), np.float32)
    pairs = np.empty((HEIGHT + 2 * radius - 1, WIDTH), np.float32)
    sums, beside = np.empty(WIDTH + 2 * radius, np.float32), np.empty(WIDTH + 2 * radius - 1, np.float32)
    for row in range(len(padded)):
        inside = min(max(row - radius, 0), HEIGHT - 1)
        for column in range(WIDTH):
            padded[row, column] = luma[inside, column]
    for row in range(len(pairs)):
        for column in range(WIDTH):
            pairs[row, column] = padded[row, column] + padded[row + 1, column]
    for row in range(HEIGHT):
        for column in range(WIDTH):
            down = pairs[row, column] + pairs[row + 2, column] + pairs[row + 4, column]
            sums[radius + column] = down + padded[row + 6, column]
        for beyond in range(radius):
            sums[beyond], sums[radius + WIDTH + beyond] = sums[radius], sums[radius + WIDTH - 1]
        for column in range(len(beside)):
            beside[column] = sums[column] + sums[column + 1]
        for column in range(WIDTH):
            box = beside[column] + beside[column + 2] + beside[column + 4] + sums[column + 6]
            passed[row, column] = luma[row, column] - box * _BOX_SHARE


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
