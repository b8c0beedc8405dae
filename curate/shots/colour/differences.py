"""Differences of each frame from the frames shortly before it, by several measures.

The self-similarity of a stretch of frames identifies transitions (Cooper and Foote 2001). A cut is a sharp
corner in it, a dissolve a soft one, a wipe one that comes block by block; motion, flashes and captions make
none. It does not depend on the content of the pictures.
"""

from collections.abc import Sequence

import numpy as np

from curate.shots.colour.arithmetic import sort_columns, square_sum, sum_of
from curate.shots.colour.features import HEIGHT, STRUCTURE_FLOOR, WIDTH, Features, Floats
from loader.base.compiled import compiled

LONGEST = 84
"""Maximum lag of the compared frames."""

CHANNELS = 8
"""Number of differences per pair.

They are fine structure, layout, colour, four ranks of blocks from least to most changed, and shifted layout.
"""

_BLOCKS = (4, 4)  # rows, columns
_RANKS = (13, 9, 5, 1)  # ranks in the ascending similarities of blocks
_COARSE = 4  # side of the squares of the shifted layout, pixels
_SHIFT = 2  # maximum shift, squares
_WINDOW = HEIGHT // _COARSE - 2 * _SHIFT, WIDTH // _COARSE - 2 * _SHIFT  # size of a shifted window, squares
_ROOM = 64  # frames between two moves of what is known
_PARTS = 4  # parts of each sum over a picture
_COUNT = _BLOCKS[0] * _BLOCKS[1]
_ZERO, _ONE, _TWO, _FOUR = np.float32(0), np.float32(1), np.float32(2), np.float32(4)
_WINDOW_FLOOR = np.float32(0.05)
_FLOOR = np.float32(STRUCTURE_FLOOR)
_LAYOUT_FLOOR = np.float32(20)  # grey levels squared
_COLOUR_FLOOR, _COLOUR_LEAST = np.float32(0.01), np.float32(0.1)
_COLOUR_SCALE = np.float32(1 / 4)


class FrameDifferences:
    """Differences of frames, computed as they arrive; the first frame is repeated as its own past."""

    def __init__(self) -> None:
        self._blocks, self._layouts, self._colours, self._windows = (_Recent() for _ in range(4))
        # Sums of squares of each.
        self._energies, self._powers, self._squares = (_Recent() for _ in range(3))

    def push(self, features: Sequence[Features]) -> Floats:
        """Return the differences of each new frame from the frames before it, by lag, [n, LONGEST + 1, CHANNELS]."""
        count = len(features)
        blocks = _blocks(features)
        layouts = np.stack([each.layout for each in features]) * np.float32(
            1 / np.sqrt(len(features[0].layout))
        )
        colours = np.stack([each.colours for each in features])
        windows = _windows(layouts)
        found = np.empty((count, LONGEST + 1, CHANNELS), np.float32)

        known = self._blocks.with_new(blocks)
        energies = self._energies.with_new(_square_sums(blocks))[..., 0]
        energies = energies + _FLOOR
        inverse = _inverse_roots(energies)
        products = np.matmul(blocks, known.transpose(0, 2, 1))
        _compare_blocks(products, inverse, _inverse_roots(energies.mean(axis=0)), found)

        powers = self._powers.with_new(_square_sums(layouts))[:, 0] + _LAYOUT_FLOOR
        products = _products(layouts, self._layouts.with_new(layouts))
        _compare_layouts(products, _inverse_roots(powers), found)

        squares = self._squares.with_new(_square_sums(colours))[:, 0]
        products = _products(colours, self._colours.with_new(colours))
        _compare_colours(products, squares, np.float32(1 / colours.shape[1]), found)

        still = windows[len(windows) // 2]
        _compare_windows(np.matmul(still, self._windows.with_new(windows).transpose(0, 2, 1)), found)
        return found


class _Recent:
    """Values of the last frames, [..., n, values], in memory in which they are moved seldom."""

    def __init__(self) -> None:
        self._memory: Floats | None = None
        self._end = 0

    def with_new(self, values: Floats) -> Floats:
        """Return the values of the LONGEST frames before some new ones, and theirs: a view until the next call."""
        count = values.shape[-2]
        known, room = self._memory, LONGEST + max(count, _ROOM)
        if known is None or self._end + count > known.shape[-2]:
            last = values[..., :1, :] if known is None else known[..., self._end - LONGEST : self._end, :]
            if known is None or known.shape[-2] < room:
                known = np.empty((*values.shape[:-2], room, values.shape[-1]), np.float32)
            known[..., :LONGEST, :] = last
            self._memory, self._end = known, LONGEST
        first, self._end = self._end - LONGEST, self._end + count
        known[..., self._end - count : self._end, :] = values
        return known[..., first : self._end, :]


def _blocks(features: Sequence[Features]) -> Floats:
    """Return the high-passed luminance of each block, grey levels over the root of its pixels, [blocks, n, pixels]."""
    blocks = np.empty((_COUNT, len(features), HEIGHT * WIDTH // _COUNT), np.float32)
    for n, each in enumerate(features):
        _split(each.fine, np.float32(each.energy), blocks[:, n])
    return blocks


@compiled
def _split(fine: Floats, energy: np.float32, blocks: Floats) -> None:
    """Write the blocks of a picture [HEIGHT * WIDTH], [blocks, pixels]."""
    rows, columns = HEIGHT // _BLOCKS[0], WIDTH // _BLOCKS[1]
    length = np.sqrt(energy * np.float32(_COUNT))
    for block in range(_COUNT):
        first = block // _BLOCKS[1] * rows * WIDTH + block % _BLOCKS[1] * columns
        for row in range(rows):
            for column in range(columns):
                blocks[block, row * columns + column] = fine[first + row * WIDTH + column] * length


def _windows(layouts: Floats) -> Floats:
    """Return coarse pictures in shifted windows, each with mean 0 and length 1, [shifts, n, squares]."""
    windows = np.empty(((2 * _SHIFT + 1) ** 2, len(layouts), _WINDOW[0] * _WINDOW[1]), np.float32)
    for n, layout in enumerate(layouts):
        _shift(layout.reshape(HEIGHT // 2, WIDTH // 2), windows[:, n])
    return windows


@compiled
def _shift(layout: Floats, windows: Floats) -> None:
    """Write the windows of a layout, [shifts, squares]."""
    coarse = np.empty((_WINDOW[0] + 2 * _SHIFT, _WINDOW[1] + 2 * _SHIFT), np.float32)
    for row in range(coarse.shape[0]):
        for column in range(coarse.shape[1]):
            above = layout[2 * row, 2 * column] + layout[2 * row, 2 * column + 1]
            below = layout[2 * row + 1, 2 * column] + layout[2 * row + 1, 2 * column + 1]
            coarse[row, column] = (above + below) / _FOUR
    for shift in range(len(windows)):
        window = windows[shift]
        top, left = shift // (2 * _SHIFT + 1), shift % (2 * _SHIFT + 1)
        for row in range(_WINDOW[0]):
            for column in range(_WINDOW[1]):
                window[row * _WINDOW[1] + column] = coarse[top + row, left + column]
        mean = sum_of(window) / np.float32(len(window))
        for square in range(len(window)):
            window[square] -= mean
        length = np.sqrt(square_sum(window) + _WINDOW_FLOOR)
        for square in range(len(window)):
            window[square] /= length


def _square_sums(values: Floats) -> Floats:
    """Return the sum of squares of each row, [..., n, 1]."""
    sums = np.empty((*values.shape[:-1], 1), np.float32)
    _sum_squares(values.reshape(-1, values.shape[-1]), sums.reshape(-1))
    return sums


@compiled
def _sum_squares(rows: Floats, sums: Floats) -> None:
    for row in range(len(rows)):
        sums[row] = square_sum(rows[row])


def _products(new: Floats, known: Floats) -> Floats:
    """Return the inner products of rows, [n, known].

    Products are sums of parts so small that BLAS runs each on one thread; more threads cost far more than
    they save here.
    """
    parts = (each.reshape(len(each), _PARTS, -1).transpose(1, 0, 2) for each in (new, known))
    rows, columns = parts
    summed: Floats = np.matmul(rows, columns.transpose(0, 2, 1)).sum(axis=0)
    return summed


def _inverse_roots(energies: Floats) -> Floats:
    return np.asarray(1 / np.sqrt(energies), np.float32)


@compiled
def _compare_blocks(products: Floats, inverse: Floats, whole: Floats, found: Floats) -> None:
    """Write the differences of fine structure and of ranked blocks.

    Args:
        products: Inner products of each block with the same block of the known frames, [blocks, n, known].
        inverse: Inverse lengths of the known frames' blocks, with the floor, [blocks, known].
        whole: Inverse lengths of the known frames, [known].
        found: Differences by lag, [n, LONGEST + 1, CHANNELS].
    """
    alike = np.empty((_COUNT, LONGEST + 1), np.float32)
    sums = np.empty(LONGEST + 1, np.float32)
    for n in range(len(found)):
        for place in range(LONGEST + 1):
            sums[place] = 0
        for block in range(_COUNT):
            own = inverse[block, LONGEST + n]
            for place in range(LONGEST + 1):
                product = products[block, n, n + place]
                sums[place] += product
                alike[block, place] = (product + _FLOOR) * (own * inverse[block, n + place])
        sort_columns(alike)
        for place in range(LONGEST + 1):
            lag = LONGEST - place
            mean = sums[place] / np.float32(_COUNT) + _FLOOR
            found[n, lag, 0] = _ONE - mean * (whole[LONGEST + n] * whole[n + place])
            for channel in range(len(_RANKS)):
                found[n, lag, 3 + channel] = _ONE - alike[_RANKS[channel], place]


@compiled
def _compare_layouts(products: Floats, inverse: Floats, found: Floats) -> None:
    """Write the differences of layouts from their inner products [n, known]."""
    for n in range(len(found)):
        for lag in range(LONGEST + 1):
            known = LONGEST + n - lag
            norm = inverse[LONGEST + n] * inverse[known]
            found[n, lag, 1] = _ONE - (products[n, known] + _LAYOUT_FLOOR) * norm


@compiled
def _compare_colours(products: Floats, squares: Floats, share: np.float32, found: Floats) -> None:
    """Write the distances of colours from their inner products [n, known] and squares [known]."""
    for n in range(len(found)):
        for lag in range(LONGEST + 1):
            known = LONGEST + n - lag
            moved = squares[LONGEST + n] + squares[known] - _TWO * products[n, known]
            # Rounding errors of cancelling terms must not count as a difference.
            distance = np.sqrt(max(moved, _ZERO) * share + _COLOUR_FLOOR) - _COLOUR_LEAST
            found[n, lag, 2] = min(distance * _COLOUR_SCALE, _TWO)


@compiled
def _compare_windows(alike: Floats, found: Floats) -> None:
    """Write the differences of shifted layouts, the best of all shifts, from products [shifts, n, known]."""
    best = np.empty(LONGEST + 1, np.float32)
    for n in range(len(found)):
        for place in range(LONGEST + 1):
            best[place] = alike[0, n, n + place]
        for shift in range(1, len(alike)):
            for place in range(LONGEST + 1):
                value = alike[shift, n, n + place]
                best[place] = value if value > best[place] else best[place]
        for place in range(LONGEST + 1):
            found[n, LONGEST - place, 7] = _ONE - best[place]
