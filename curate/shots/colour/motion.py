"""Share of each frame's blocks that is found near its place in the frames shortly before it.

Motion inside a shot shifts blocks, while a cut replaces them, even a cut between two moments of the same
scene.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from curate.shots.colour.arithmetic import sort_columns
from curate.shots.colour.features import HEIGHT, WIDTH, Features, Floats
from loader.base.compiled import compiled

FARTHEST = 15
"""Maximum lag of the compared frames."""

RANKS = (10, 6, 3, 1)
"""Ranks in the ascending similarities of blocks that are returned."""

_ROWS, _COLUMNS = HEIGHT // 2, WIDTH // 2  # size of the layout
_BLOCK = (6, 8)  # rows, columns
_SHIFT = (2, 3)  # maximum motion of a block in rows and columns, a tenth of the picture
_GROUP = 16  # frames compared at once
_BLOCKS = (_ROWS // _BLOCK[0]) * (_COLUMNS // _BLOCK[1])
_PIXELS = _BLOCK[0] * _BLOCK[1]
_DOWN, _ACROSS = (2 * shift + 1 for shift in _SHIFT)  # shifts in rows and in columns
_ONE = np.float32(1)
_FLOOR = np.float32(20 * _PIXELS)  # energy of coding noise in a block, grey levels squared


class BlockMotion:
    """Block motion of frames, computed as they arrive; the first frame is repeated as its own past."""

    def __init__(self) -> None:
        # The last FARTHEST frames, then the new ones; new memory for each group would cost as much as the sums.
        self._windows = np.zeros(
            (_COLUMNS // _BLOCK[1], _ROWS + 2 * _SHIFT[0], _BLOCK[1], _ACROSS, FARTHEST + _GROUP), np.float32
        )
        self._inverse = np.zeros((_BLOCKS, _DOWN, _ACROSS, FARTHEST + _GROUP), np.float32)
        columns = len(self._windows)
        self._products = np.empty((columns, _DOWN, _GROUP, _ACROSS * (FARTHEST + _GROUP)), np.float32)
        self._begun = False

    def push(self, features: Sequence[Features]) -> Floats:
        """Return the differences of each new frame from the frames before it, by lag, [n, FARTHEST + 1, RANKS]."""
        layouts = np.stack([each.layout for each in features]).reshape(-1, _ROWS, _COLUMNS)
        # Within a group each frame is compared with all others, so larger groups waste more.
        groups = [layouts[first : first + _GROUP] for first in range(0, len(layouts), _GROUP)]
        return np.concatenate([self._push(group) for group in groups])

    def _push(self, layouts: Floats) -> Floats:
        count = len(layouts)
        _take_in(layouts, self._windows, self._inverse)
        if not self._begun:
            for known in (self._windows, self._inverse):
                known[..., :FARTHEST] = known[..., FARTHEST : FARTHEST + 1]
            self._begun = True
        found = np.empty((count, FARTHEST + 1, len(RANKS)), np.float32)
        alike = np.empty((_BLOCKS, count, FARTHEST + 1), np.float32)
        for row, blocks in enumerate(_blocks(layouts)):
            np.matmul(blocks, _shifted(self._windows, row), out=self._products[:, :, :count])
            _find_likest(self._products, self._inverse, row * len(blocks), alike)
        _rank(alike, found)
        _keep_last(self._windows.reshape(-1, FARTHEST + _GROUP), count)
        _keep_last(self._inverse.reshape(-1, FARTHEST + _GROUP), count)
        return found


@compiled
def _keep_last(known: Floats, count: int) -> None:
    """Move the last frames of rows [rows, frames] to the front, past some new ones."""
    for row in range(len(known)):
        for frame in range(FARTHEST):
            known[row, frame] = known[row, count + frame]


@compiled
def _find_likest(products: Floats, inverse: Floats, first: int, alike: Floats) -> None:
    """Write the largest similarity of a row's blocks over all shifts, of each frame to those before it.

    Args:
        products: Inner products, [columns, shifts down, n, shifts across * frames].
        inverse: Inverse lengths of windows, [blocks, shifts down, shifts across, frames].
        first: First block of the row.
        alike: Similarities from the farthest frame to the frame itself, [blocks, n, FARTHEST + 1].
    """
    frames = inverse.shape[3]
    best = np.empty(FARTHEST + 1, np.float32)
    for column in range(len(products)):
        block = first + column
        for n in range(alike.shape[1]):
            for place in range(FARTHEST + 1):
                best[place] = -np.inf
            for down in range(_DOWN):
                for across in range(_ACROSS):
                    for place in range(FARTHEST + 1):
                        # The floor makes blocks without structure alike.
                        product = products[column, down, n, across * frames + n + place] + _FLOOR
                        value = product * inverse[block, down, across, n + place]
                        best[place] = value if value > best[place] else best[place]
            own = inverse[block, _SHIFT[0], _SHIFT[1], FARTHEST + n]
            for place in range(FARTHEST + 1):
                alike[block, n, place] = best[place] * own


@compiled
def _rank(alike: Floats, found: Floats) -> None:
    """Write the differences of the ranked blocks by lag, [n, FARTHEST + 1, ranks]; sorts the similarities."""
    columns = np.empty((_BLOCKS, FARTHEST + 1), np.float32)
    for n in range(len(found)):
        for block in range(_BLOCKS):
            for place in range(FARTHEST + 1):
                columns[block, place] = alike[block, n, place]
        sort_columns(columns)
        for place in range(FARTHEST + 1):
            for number in range(len(RANKS)):
                found[n, FARTHEST - place, number] = _ONE - columns[RANKS[number], place]


def _blocks(layouts: Floats) -> Floats:
    """Return each block of layouts [n, rows, columns] about its mean, [rows, columns, 1, n, pixels].

    The mean of a window does not count in a product with a block whose mean is 0.
    """
    rows, columns = _ROWS // _BLOCK[0], _COLUMNS // _BLOCK[1]
    split = layouts.reshape(-1, rows, _BLOCK[0], columns, _BLOCK[1]).transpose(1, 3, 2, 4, 0)
    blocks = np.ascontiguousarray(split).reshape(rows, columns, 1, _PIXELS, -1)
    blocks -= blocks.mean(axis=3, keepdims=True)
    return blocks.transpose(0, 1, 2, 4, 3)


def _shifted(windows: Floats, blocks: int) -> Floats:
    """View a row of blocks in all shifts, the matrices of products; shifts down are other rows of the windows.

    Returns:
        [block columns, shifts down, pixels, shifts across * n].
    """
    column, row, pixel, _, frame = windows.strides
    shape = (len(windows), _DOWN, _PIXELS, windows.shape[3] * windows.shape[4])
    first = windows[:, blocks * _BLOCK[0] :]
    return as_strided(first, shape, (column, row, pixel, frame), writeable=False)


@compiled
def _take_in(layouts: Floats, windows: Floats, inverse: Floats) -> None:
    """Write what new frames are compared by behind the last FARTHEST ones.

    Args:
        layouts: Layouts of the new frames, [n, rows, columns].
        windows: Each column of blocks of padded layouts in all shifts across, [block columns, rows, columns,
            shifts, frames].
        inverse: Inverse length of each window about its mean, with the floor, [blocks, down, across, frames].
    """
    count = len(layouts)
    padded = np.empty((_ROWS + 2 * _SHIFT[0], _COLUMNS + 2 * _SHIFT[1], count), np.float32)
    for row in range(padded.shape[0]):
        inside = min(max(row - _SHIFT[0], 0), _ROWS - 1)
        for column in range(padded.shape[1]):
            for n in range(count):
                padded[row, column, n] = layouts[n, inside, min(max(column - _SHIFT[1], 0), _COLUMNS - 1)]
    for first in range(len(windows)):
        for row in range(windows.shape[1]):
            for column in range(_BLOCK[1]):
                for shift in range(_ACROSS):
                    beside = first * _BLOCK[1] + column + shift
                    for n in range(count):
                        windows[first, row, column, shift, FARTHEST + n] = padded[row, beside, n]
    # In float64, since of two large sums a small difference remains.
    sums, squares = np.empty(padded.shape, np.float64), np.empty(padded.shape, np.float64)
    _sum_blocks(padded, sums, squares)
    for block in range(_BLOCKS):
        top = block // len(windows) * _BLOCK[0]
        left = block % len(windows) * _BLOCK[1]
        for down in range(_DOWN):
            for across in range(_ACROSS):
                for n in range(count):
                    total = sums[top + down, left + across, n]
                    energy = squares[top + down, left + across, n] - total * total / _PIXELS
                    length = np.sqrt(max(energy, 0.0) + _FLOOR)
                    inverse[block, down, across, FARTHEST + n] = np.float32(1 / length)


@compiled
def _sum_blocks(padded: Floats, sums: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
    """Write the sums of values and of squares over the block that begins at each place, [rows, columns, n].

    Pairs are added, then three of them down, then four across.
    """
    rows, columns, count = padded.shape
    for row in range(rows):
        for column in range(columns):
            for n in range(count):
                value = np.float64(padded[row, column, n])
                sums[row, column, n] = value
                squares[row, column, n] = value * value
    for values in (sums, squares):
        for row in range(rows - _BLOCK[0] + 1):
            for column in range(columns):
                for n in range(count):
                    first = values[row, column, n] + values[row + 1, column, n]
                    second = values[row + 2, column, n] + values[row + 3, column, n]
                    third = values[row + 4, column, n] + values[row + 5, column, n]
                    values[row, column, n] = first + second + third
        for row in range(rows - _BLOCK[0] + 1):
            for column in range(columns - _BLOCK[1] + 1):
                for n in range(count):
                    first = values[row, column, n] + values[row, column + 1, n]
                    second = values[row, column + 2, n] + values[row, column + 3, n]
                    third = values[row, column + 4, n] + values[row, column + 5, n]
                    fourth = values[row, column + 6, n] + values[row, column + 7, n]
                    values[row, column, n] = (first + second) + (third + fourth)
