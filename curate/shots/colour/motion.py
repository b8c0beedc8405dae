"""Share of each frame's blocks that is found near its place in the frames shortly before it.

Motion inside a shot shifts blocks, while a cut replaces them, even a cut between two moments of the same
scene.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from reelweave.curate.shots.colour.features import HEIGHT, WIDTH, Features, Floats, repeat_edges

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
_FLOOR = np.float32(20 * _PIXELS)  # energy of coding noise in a block, grey levels squared


class BlockMotion:
    """Block motion of frames, computed as they arrive; the first frame is repeated as its own past.

    Some BLAS libraries round a row of a product by its place among the rows. So each frame has the same place in
    products of one shape, however frames arrive.
    """

    def __init__(self) -> None:
        # The last FARTHEST frames, then a group; new memory for each group would cost as much as the sums.
        self._windows = np.zeros(
            (_COLUMNS // _BLOCK[1], _ROWS + 2 * _SHIFT[0], _BLOCK[1], _ACROSS, FARTHEST + _GROUP), np.float32
        )
        self._inverse = np.zeros((_BLOCKS, _DOWN, _ACROSS, FARTHEST + _GROUP), np.float32)
        columns = len(self._windows)
        self._blocks = np.zeros((_ROWS // _BLOCK[0], columns, 1, _PIXELS, _GROUP), np.float32)
        self._products = np.empty((columns, _DOWN, _GROUP, _ACROSS * (FARTHEST + _GROUP)), np.float32)
        self._begun = False
        self._filled = 0

    def push(self, features: Sequence[Features]) -> Floats:
        """Return the differences of each new frame from the frames before it, by lag, [n, FARTHEST + 1, RANKS]."""
        layouts = np.stack([each.layout for each in features]).reshape(-1, _ROWS, _COLUMNS)
        # Within a group each frame is compared with all others, so larger groups waste more.
        borders = range(_GROUP - self._filled, len(layouts), _GROUP)
        return np.concatenate([self._push(some) for some in np.split(layouts, borders) if len(some)])

    def _push(self, layouts: Floats) -> Floats:
        """Return the differences of frames that one group has room for."""
        # A full group leaves its last frames as history of the next.
        if self._filled == _GROUP:
            for history in (self._windows, self._inverse):
                history[..., :FARTHEST] = history[..., _GROUP:]
            self._filled = 0
        count = len(layouts)
        rows = slice(self._filled, self._filled + count)
        self._filled += count
        # Edges are repeated, so that blocks at the border may shift outwards.
        padded = np.empty((_ROWS + 2 * _SHIFT[0], _COLUMNS + 2 * _SHIFT[1], count), np.float32)
        padded[_SHIFT[0] : -_SHIFT[0], _SHIFT[1] : -_SHIFT[1]] = layouts.transpose(1, 2, 0)
        repeat_edges(padded, _SHIFT)
        new = slice(FARTHEST + rows.start, FARTHEST + rows.stop)
        self._windows[..., new] = _shifted_across(padded)
        self._inverse[..., new] = _inverse_lengths(padded)
        # Before the first frame lies the same frame: nothing has moved.
        if not self._begun:
            for history in (self._windows, self._inverse):
                history[..., :FARTHEST] = history[..., FARTHEST : FARTHEST + 1]
            self._begun = True
        # Likeness of each block with every shift of the frames before, at once.
        self._blocks[..., rows] = _blocks(layouts)
        alike = np.stack([self._alike(row, rows) for row in range(len(self._blocks))])
        alike = alike.reshape(_BLOCKS, count, -1)
        alike *= self._inverse[:, _SHIFT[0], _SHIFT[1], new, None]
        indices = np.arange(count)[:, None]
        by_lag = alike[:, indices, new.start + indices - np.arange(FARTHEST + 1)]
        return np.asarray(1 - np.sort(by_lag, axis=0)[RANKS, ...].transpose(1, 2, 0), np.float32)

    def _alike(self, row: int, frames: slice) -> Floats:
        """Return the largest similarity of blocks of a row over all shifts, short of their own lengths.

        Args:
            row: Row of blocks.
            frames: Frames of the group.

        Returns:
            [columns, n, frames]; nothing is said by frames that are not there yet.
        """
        columns = self._blocks.shape[1]
        np.matmul(
            self._blocks[row].transpose(0, 1, 3, 2), _shifted_views(self._windows, row), out=self._products
        )
        products = self._products[:, :, frames]
        products += _FLOOR  # makes blocks without structure alike
        inverse = self._inverse[row * columns : (row + 1) * columns]
        products *= inverse.reshape(columns, _DOWN, 1, -1)
        return _largest(products.max(axis=1).reshape(columns, -1, *inverse.shape[2:]))


def _blocks(layouts: Floats) -> Floats:
    """Return each block of layouts [n, rows, columns] about its mean, [rows, columns, 1, pixels, n].

    The mean of a window does not count in a product with a block whose mean is 0.
    """
    rows, columns = _ROWS // _BLOCK[0], _COLUMNS // _BLOCK[1]
    split = layouts.reshape(-1, rows, _BLOCK[0], columns, _BLOCK[1]).transpose(1, 3, 2, 4, 0)
    blocks = np.ascontiguousarray(split).reshape(rows, columns, 1, _PIXELS, -1)
    blocks -= blocks.mean(axis=3, keepdims=True)
    return blocks


def _shifted_across(padded: Floats) -> Floats:
    """View each column of blocks of padded layouts [rows, columns, n] in all shifts across.

    Returns:
        [block columns, rows, columns, shifts, n].
    """
    row, column, frame = padded.strides
    shape = (_COLUMNS // _BLOCK[1], len(padded), _BLOCK[1], _ACROSS, padded.shape[2])
    return as_strided(padded, shape, (column * _BLOCK[1], row, column, column, frame), writeable=False)


def _shifted_views(windows: Floats, blocks: int) -> Floats:
    """View a row of blocks in all shifts, the matrices of products; shifts down are other rows of the windows.

    Returns:
        [block columns, shifts down, pixels, shifts across * n].
    """
    column, row, pixel, _, frame = windows.strides
    shape = (len(windows), _DOWN, _PIXELS, windows.shape[3] * windows.shape[4])
    first = windows[:, blocks * _BLOCK[0] :]
    return as_strided(first, shape, (column, row, pixel, frame), writeable=False)


def _inverse_lengths(padded: Floats) -> Floats:
    """Return the inverse of the length of each window about its mean, with the floor, [blocks, down, across, n]."""
    wide = padded.astype(np.float64)  # of two large sums a small difference remains
    energy = _block_sums(wide * wide) - _block_sums(wide) ** 2 / _PIXELS
    rows, columns = _places(_ROWS, 0), _places(_COLUMNS, 1)
    chosen = np.maximum(energy[rows[:, None, :, None], columns[None, :, None, :]], 0)
    return np.asarray(1 / np.sqrt(chosen + _FLOOR), np.float32).reshape(_BLOCKS, _DOWN, _ACROSS, -1)


def _block_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum over the block that begins at each place, [rows, columns, n]."""
    pairs = values[:-1] + values[1:]
    six = pairs[:-4] + pairs[2:-2] + pairs[4:]
    pairs = six[:, :-1] + six[:, 1:]
    fours = pairs[:, :-2] + pairs[:, 2:]
    return np.asarray(fours[:, :-4] + fours[:, 4:])


def _places(size: int, axis: int) -> NDArray[np.intp]:
    """Return the first pixel of each block under each shift, in the padded layout, [blocks, shifts]."""
    return np.arange(0, size, _BLOCK[axis])[:, None] + np.arange(2 * _SHIFT[axis] + 1)


def _largest(values: Floats) -> Floats:
    """Return the maximum over the last axis but one; by halves it takes a third of the time of `max`."""
    while values.shape[-2] > 1:
        half = values.shape[-2] // 2
        odd = values[..., 2 * half :, :]
        values = np.maximum(values[..., :half, :], values[..., half : 2 * half, :])
        if odd.size:
            values[..., :1, :] = np.maximum(values[..., :1, :], odd)
    return values[..., 0, :]
