"""Share of each frame's blocks that is found near its place in the frames shortly before it.

Motion inside a shot shifts blocks, while a cut replaces them, even a cut between two moments of the same
scene.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from curate.shots.colour.features import HEIGHT, WIDTH, Features, Floats

FARTHEST = 15
"""Maximum lag of the compared frames."""

RANKS = (10, 6, 3, 1)
"""Ranks in the ascending similarities of blocks that are returned."""

_ROWS, _COLUMNS = HEIGHT // 2, WIDTH // 2  # size of the layout
_BLOCK = (6, 8)  # rows, columns
_SHIFT = (2, 3)  # maximum motion of a block in rows and columns, a tenth of the picture
_FLOOR = np.float32(20 * _BLOCK[0] * _BLOCK[1])  # energy of coding noise in a block, grey levels squared


class BlockMotion:
    """Block motion of frames, computed as they arrive; the first frame is repeated as its own past."""

    def __init__(self) -> None:
        self._known: Floats | None = None  # [FARTHEST, blocks, shifts, pixels]

    def push(self, features: Sequence[Features]) -> Floats:
        """Return the differences of each new frame from the frames before it, by lag, [n, FARTHEST + 1, RANKS]."""
        layouts = np.stack([each.layout for each in features]).reshape(-1, _ROWS, _COLUMNS)
        windows = _windows(layouts)
        if self._known is None:
            self._known = windows[:1].repeat(FARTHEST, axis=0)
        known = np.concatenate([self._known, windows])
        self._known = known[len(windows) :].copy()
        blocks = windows[:, :, windows.shape[2] // 2]
        found = np.empty((len(windows), FARTHEST + 1, len(RANKS)), np.float32)
        for n, block in enumerate(blocks):
            earlier = known[n : n + FARTHEST + 1][::-1]  # by lag
            alike = np.matmul(earlier, block[:, :, None])[..., 0].max(axis=2)
            alike.sort(axis=1)
            found[n] = 1 - alike[:, RANKS]
        return found


def _windows(layouts: Floats) -> Floats:
    """Return each block in all shifts, scaled to length 1, [n, blocks, shifts, pixels + 1]."""
    padded = np.pad(layouts, ((0, 0), *((shift, shift) for shift in _SHIFT)), mode="edge")
    views = sliding_window_view(padded, _BLOCK, axis=(1, 2))
    rows, columns = _places(_ROWS, 0), _places(_COLUMNS, 1)
    chosen = views[:, rows[:, None, :, None], columns[None, :, None, :]]
    count, blocks = len(layouts), len(rows) * len(columns)
    windows = np.empty(
        (count, blocks, rows.shape[1] * columns.shape[1], _BLOCK[0] * _BLOCK[1] + 1), np.float32
    )
    windows[..., :-1] = chosen.reshape(count, blocks, windows.shape[2], -1)
    windows[..., :-1] -= windows[..., :-1].mean(axis=3, keepdims=True)
    windows[..., -1] = np.sqrt(_FLOOR)  # makes blocks without structure alike
    windows /= np.sqrt(np.einsum("nbsp,nbsp->nbs", windows, windows))[..., None]
    return windows


def _places(size: int, axis: int) -> NDArray[np.intp]:
    """Return the first pixel of each block under each shift, in the padded layout, [blocks, shifts]."""
    return np.arange(0, size, _BLOCK[axis])[:, None] + np.arange(2 * _SHIFT[axis] + 1)
