"""Edges of the pictures of a clip, and how steady they are: those of a moving scene cancel each other over time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.compiled import compiled

Floats = NDArray[np.float32]

LOOK_PER_S, LOOK_LONG_SIDE_PX = 4.0, 960
"""Pictures that are looked at in a second, and their long side."""

CELL = 8
_STEP = 6.0  # least gradient of an edge, grey levels a pixel
STEADY = (0.6, 0.93)  # least share of a gradient's power in its mean: under a moving scene, under a slow one
_BORDER = 4  # lines at the edge of a picture that scaling and coding smear
_BLUR = 2  # pixels to each side over which a gradient is compared with its surroundings

EDGES, FIRST, FIELDS = 0, 1, 4
"""Planes of `StillEdges`: edges, then for each level the steady ones, their steps across and down, their sharpness."""


@dataclass(frozen=True, eq=False)
class StillEdges:
    """Edges in some pictures of a clip, evenly spaced, and how steady they are.

    Attributes:
        pictures: Number of pictures.
        cells: float32 [planes, rows, columns]: in each cell of 8 x 8 pixels the number of edges, and for two levels of
            steadiness that of steady edges, the sums of their steps across and down, and the sum of their sharpness.
    """

    pictures: int
    cells: Floats

    def inside(self, across: tuple[float, float], down: tuple[float, float]) -> "StillEdges":
        """Return the cells that lie in a part of the pictures, given by its ends as shares of width and height."""
        rows, columns = (
            slice(math.ceil(begin * size), int(end * size))
            for (begin, end), size in zip((down, across), self.cells.shape[1:], strict=True)
        )
        return StillEdges(self.pictures, self.cells[:, rows, columns])


class EdgeMeter:
    """Meter of steady edges in pictures of one clip after the other.

    Attributes:
        pictures: Number of pictures of the clip so far.
    """

    def __init__(self) -> None:
        self.pictures = 0
        self._sums: Floats | None = None

    def push(self, luma: NDArray[np.uint8], times: int = 1) -> None:
        """Take a picture, [h, w], that counts so many times."""
        if self._sums is None or self._sums.shape[1:] != luma.shape:
            self._sums, self.pictures = np.zeros((3, *luma.shape), np.float32), 0
        _add(luma, np.float32(times), self._sums)
        self.pictures += times

    def take(self) -> StillEdges:
        """Return the edges of the clip, and start the next one."""
        pictures, sums = self.pictures, self._sums
        self.pictures, self._sums = 0, None
        planes = FIRST + FIELDS * len(STEADY)
        if sums is None:
            return StillEdges(0, np.zeros((planes, 0, 0), np.float32))
        cells = np.zeros((planes, sums.shape[1] // CELL, sums.shape[2] // CELL), np.float32)
        across, down, power = sums / np.float32(pictures)
        steps = np.sqrt(across * across + down * down)
        for index, share in enumerate(STEADY):
            steady = (steps > _STEP) & (steps * steps > share * power)
            _gather(steady, across, down, steps, cells[FIRST + FIELDS * index :])
        cells[EDGES] = _cell_sums(power > _STEP * _STEP, cells.shape[1:])
        return StillEdges(pictures, cells)


def _cell_sums(pixels: NDArray[np.bool_], shape: tuple[int, ...]) -> Floats:
    rows, columns = shape
    cropped = pixels[: rows * CELL, : columns * CELL]
    return np.asarray(cropped.reshape(rows, CELL, columns, CELL).sum(axis=(1, 3)), np.float32)


@compiled
def _add(luma: NDArray[np.uint8], weight: np.float32, sums: Floats) -> None:
    """Add the steps of a picture to the next pixel across and down, and their power, to their sums."""
    height, width = luma.shape
    for y in range(height - 1):
        for x in range(width - 1):
            level = np.float32(luma[y, x])
            across, down = np.float32(luma[y, x + 1]) - level, np.float32(luma[y + 1, x]) - level
            sums[0, y, x] += weight * across
            sums[1, y, x] += weight * down
            sums[2, y, x] += weight * (across * across + down * down)


@compiled
def _gather(steady: NDArray[np.bool_], across: Floats, down: Floats, steps: Floats, cells: Floats) -> None:
    """Add the steady edges, the sizes of their steps and their sharpness to the cells in which they lie."""
    height, width = steps.shape
    for y in range(_BORDER, min(height - _BORDER, cells.shape[1] * CELL)):
        for x in range(_BORDER, min(width - _BORDER, cells.shape[2] * CELL)):
            if not steady[y, x]:
                continue
            around = np.float32(0)
            for near_y in range(y - _BLUR, y + _BLUR + 1):
                for near_x in range(x - _BLUR, x + _BLUR + 1):
                    around += steps[near_y, near_x]
            row, column = y // CELL, x // CELL
            cells[0, row, column] += 1
            cells[1, row, column] += abs(across[y, x])
            cells[2, row, column] += abs(down[y, x])
            cells[3, row, column] += steps[y, x] * (2 * _BLUR + 1) ** 2 / around
