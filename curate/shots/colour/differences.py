"""Differences of each frame from the frames shortly before it, by several measures.

The self-similarity of a stretch of frames identifies transitions (Cooper and Foote 2001). A cut is a sharp
corner in it, a dissolve a soft one, and a wipe one that comes block by block. Motion, flashes and captions
make none. It does not depend on the content of the pictures.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from reelweave.curate.shots.colour.features import HEIGHT, STRUCTURE_FLOOR, WIDTH, Features, Floats

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
_ROOM = 64  # frames between two moves of what is known
_PARTS = 4  # parts of each sum over a picture
_FLOOR = np.float32(STRUCTURE_FLOOR)
_LAYOUT_FLOOR = np.float32(20)  # grey levels squared
_COLOUR_SCALE = np.float32(1 / 4)


class FrameDifferences:
    """Differences of frames, computed as they arrive; the first frame is repeated as its own past.

    Args:
        lags: Lags of the compared frames, at most LONGEST.
    """

    def __init__(self, lags: Sequence[int] = range(LONGEST + 1)) -> None:
        self._lags = np.array(lags)
        self._blocks, self._layouts, self._colours, self._windows = (_Recent() for _ in range(4))
        # Sums of squares of each.
        self._energies, self._powers, self._squares = (_Recent() for _ in range(3))

    def push(self, features: Sequence[Features]) -> Floats:
        """Return the differences of each new frame from the frames before it, by lag, [n, lags, CHANNELS]."""
        count = len(features)
        pairs = _Pairs(count, self._lags)
        blocks = _blocks(features)
        layouts = np.stack([each.layout for each in features]) * np.float32(
            1 / np.sqrt(len(features[0].layout))
        )
        colours = np.stack([each.colours for each in features])
        windows = _windows(layouts)
        differences = np.empty((count, len(self._lags), CHANNELS), np.float32)

        products = pairs.of(np.matmul(blocks, self._blocks.with_new(blocks).transpose(0, 2, 1)))
        energies = self._energies.with_new(np.einsum("bnf,bnf->bn", blocks, blocks)[..., None])[..., 0]
        energies = energies + _FLOOR
        differences[..., 0] = 1 - (products.mean(axis=0) + _FLOOR) * pairs.norms(energies.mean(axis=0))
        products += _FLOOR
        products *= pairs.norms(energies)
        ranked = np.sort(products.transpose(1, 2, 0), axis=-1)
        for channel, rank in enumerate(_RANKS):
            differences[..., 3 + channel] = 1 - ranked[..., rank]

        powers = self._powers.with_new(np.einsum("nf,nf->n", layouts, layouts)[:, None])[:, 0] + _LAYOUT_FLOOR
        products = pairs.of(_products(layouts, self._layouts.with_new(layouts)))
        differences[..., 1] = 1 - (products + _LAYOUT_FLOOR) * pairs.norms(powers)

        squares = self._squares.with_new(np.einsum("nf,nf->n", colours, colours)[:, None])[:, 0]
        products = pairs.of(_products(colours, self._colours.with_new(colours)))
        moved = squares[LONGEST:, None] + pairs.earlier(squares) - 2 * products
        moved = np.maximum(moved, 0) * np.float32(1 / colours.shape[1])
        # Rounding errors of cancelling terms must not count as a difference.
        differences[..., 2] = np.minimum(
            (np.sqrt(moved + np.float32(0.01)) - np.float32(0.1)) * _COLOUR_SCALE, 2
        )

        still = windows[len(windows) // 2]
        alike = np.matmul(still, self._windows.with_new(windows).transpose(0, 2, 1))
        differences[..., 7] = 1 - pairs.of(alike.max(axis=0))
        return differences


class _Pairs:
    """Pairs of each of some new frames with a frame before it, by lag, among the LONGEST frames before and them."""

    def __init__(self, count: int, lags: NDArray[np.intp]) -> None:
        new = np.arange(count)[:, None]
        self._earlier = LONGEST + new - lags
        self._places = self._earlier + new * (LONGEST + count)

    def of(self, products: Floats) -> Floats:
        """Return the products of the pairs, [..., n, lags], of those with all frames, [..., n, LONGEST + n]."""
        return products.reshape(*products.shape[:-2], -1).take(self._places, axis=-1)

    def earlier(self, all_frames: Floats) -> Floats:
        """Return the values of the earlier frames, [..., n, lags], of those of all frames, [..., LONGEST + n]."""
        return all_frames.take(self._earlier, axis=-1)

    def norms(self, energies: Floats) -> Floats:
        """Return the inverse of the root of both frames' energies, [..., n, lags]."""
        inverse = np.asarray(1 / np.sqrt(energies), np.float32)
        norms = self.earlier(inverse)
        norms *= inverse[..., LONGEST:, None]
        return norms


class _Recent:
    """Values of the last frames, [..., n, values], in memory in which they are moved seldom."""

    def __init__(self) -> None:
        self._memory: Floats | None = None
        self._end = 0

    def with_new(self, values: Floats) -> Floats:
        """Return the values of the LONGEST frames before some new ones, and theirs: a view until the next call."""
        count = values.shape[-2]
        memory, room = self._memory, LONGEST + max(count, _ROOM)
        if memory is None or self._end + count > memory.shape[-2]:
            last = values[..., :1, :] if memory is None else memory[..., self._end - LONGEST : self._end, :]
            if memory is None or memory.shape[-2] < room:
                memory = np.empty((*values.shape[:-2], room, values.shape[-1]), np.float32)
            memory[..., :LONGEST, :] = last
            self._memory, self._end = memory, LONGEST
        first, self._end = self._end - LONGEST, self._end + count
        memory[..., self._end - count : self._end, :] = values
        return memory[..., first : self._end, :]


def _blocks(features: Sequence[Features]) -> Floats:
    """Return the high-passed luminance of each block, grey levels over the root of its pixels, [blocks, n, pixels]."""
    count = len(features)
    rows, columns = _BLOCKS
    energies = np.array([each.energy for each in features], np.float32)
    fine = np.stack([each.fine for each in features]) * np.sqrt(energies * (rows * columns))[:, None]
    split = fine.reshape(count, rows, HEIGHT // rows, columns, WIDTH // columns).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(split.reshape(rows * columns, count, -1))


def _windows(layouts: Floats) -> Floats:
    """Return coarse pictures in shifted windows, each with mean 0 and length 1, [shifts, n, squares]."""
    count, half = len(layouts), _COARSE // 2
    halved = layouts.reshape(count, HEIGHT // _COARSE, half, WIDTH // _COARSE, half)
    # As `mean`, in a tenth of the time.
    coarse = (halved[:, :, 0, :, 0] + halved[:, :, 0, :, 1]) + (halved[:, :, 1, :, 0] + halved[:, :, 1, :, 1])
    coarse *= np.float32(1 / half**2)
    size = coarse.shape[1] - 2 * _SHIFT, coarse.shape[2] - 2 * _SHIFT
    views = sliding_window_view(coarse, size, axis=(1, 2)).transpose(1, 2, 0, 3, 4)
    windows = np.ascontiguousarray(views).reshape((2 * _SHIFT + 1) ** 2, count, -1)
    windows -= windows.mean(axis=2, keepdims=True)
    lengths = np.sqrt(np.einsum("snp,snp->sn", windows, windows) + np.float32(0.05))
    windows /= lengths[:, :, None]
    return windows


def _products(new: Floats, reference: Floats) -> Floats:
    """Return the inner products of rows, [n, reference].

    Products are sums of parts so small that BLAS runs each on one thread; more threads cost far more than
    they save here.
    """
    parts = (each.reshape(len(each), _PARTS, -1).transpose(1, 0, 2) for each in (new, reference))
    rows, columns = parts
    summed: Floats = np.matmul(rows, columns.transpose(0, 2, 1)).sum(axis=0)
    return summed
