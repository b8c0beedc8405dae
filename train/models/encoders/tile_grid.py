"""Tile grid of a VAE that encodes videos in tiles; importing it loads no torch."""

import itertools

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.settings import Settings


class TileGrid(Settings):
    """Overlapping tiles as in diffusers: one begins at every step, and those at the end are smaller.

    Frames that fit one tile are not cut, and neither are videos shorter than a tile.
    """

    frames: int | None = Field(None, ge=1, description="frames of a tile; null: all frames of the video")
    height: int = Field(ge=1, description="height of a tile in pixels")
    width: int = Field(ge=1, description="width of a tile in pixels")
    frames_step: int = Field(1, ge=1, description="frames between the starts of tiles")
    height_step: int = Field(ge=1, description="pixels between the starts of tiles")
    width_step: int = Field(ge=1, description="pixels between the starts of tiles")

    def tiles(self, frames: int, height: int, width: int) -> IndexArray:
        """Return frames, height and width of each tile of a video, int64 [tiles, 3]."""
        times = [frames]
        if self.frames is not None and frames >= self.frames:
            times = _pieces(frames, self.frames, self.frames_step)
        rows, columns = [height], [width]
        if height > self.height or width > self.width:
            rows = _pieces(height, self.height, self.height_step)
            columns = _pieces(width, self.width, self.width_step)
        return np.array(list(itertools.product(times, rows, columns)), np.int64)


def _pieces(length: int, size: int, step: int) -> list[int]:
    return [min(size, length - first) for first in range(0, length, step)]
