"""Overlapping tiles of a decode: which latents a tile reads, and how decoded tiles are blended into a video.

Tiles and the order of blending are those of diffusers' `tiled_decode`, so that the same decoded tiles give the same
bits. An overlap is the halo of a tile: a decoder's receptive field within it changes no pixel that is kept.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from reelweave.train.models.precision.float32 import at_least_float32

FRAMES, ROWS, COLUMNS = 2, 3, 4
"""Dimensions of [B, C, T, H, W] that may be cut."""


class TileAxis(NamedTuple):
    """Tiles along one axis of a video.

    Attributes:
        size: latents of a tile.
        step: latents between the starts of tiles.
        keep: decoded values that a tile gives to the video.
        blend: decoded values over which a tile is faded in from the one before.
    """

    size: int
    step: int
    keep: int
    blend: int

    @classmethod
    def of(cls, size: int, overlap: int, scale: int) -> "TileAxis":
        """Return tiles that overlap by a number of latents, each decoded to ``scale`` values."""
        return cls(size, size - overlap, (size - overlap) * scale, overlap * scale)


class Tile(NamedTuple):
    """Place and size of one tile, in latents.

    Attributes:
        start: first frame, row and column.
        size: frames, rows and columns.
    """

    start: tuple[int, int, int]
    size: tuple[int, int, int]

    def of(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return this tile of some latents, a view."""
        for dim, (start, size) in enumerate(zip(self.start, self.size, strict=True), FRAMES):
            latents_BCTHW = latents_BCTHW.narrow(dim, start, size)
        return latents_BCTHW


@dataclass(frozen=True)
class TileLayout:
    """Layout of the tiles of a decode.

    A tile in time behind the first reads one latent frame more, whose single decoded frame is dropped. Causal
    VAEs decode a first latent frame to one frame, and every further one to ``scale[0]`` frames.

    Attributes:
        scale: decoded frames, rows and columns per latent, before the tokenizer's `finish`.
        frames: tiles in time; None: all frames together, as VAEs with a causal cache have it.
        rows: tiles along the height; None: whole pictures.
        columns: tiles along the width; None exactly where ``rows`` is.
        patch: rows and columns of pixels that `finish` makes of a decoded value.
    """

    scale: tuple[int, int, int]
    frames: TileAxis | None = None
    rows: TileAxis | None = None
    columns: TileAxis | None = None
    patch: int = 1

    def tiles(self, size: Sequence[int]) -> list[Tile]:
        """Return the tiles of latents of a size: by time, then row, then column."""
        return [Tile(*zip(*spans, strict=True)) for spans in itertools.product(*self._spans(size))]

    def decoded_size(self, tile: Tile) -> tuple[int, int, int]:
        """Return frames, rows and columns that a tile is decoded to."""
        frames, rows, columns = tile.size
        return 1 + (frames - 1) * self.scale[0], rows * self.scale[1], columns * self.scale[2]

    def is_whole(self, size: Sequence[int]) -> bool:
        """Return True where latents of a size are one tile."""
        return all(len(spans) == 1 for spans in self._spans(size))

    def assemble(self, decoded: Sequence[torch.Tensor], size: Sequence[int]) -> torch.Tensor:
        """Return the video of decoded tiles, before the tokenizer's `finish`; overwrites the tiles.

        Args:
            decoded: tiles in the order of `tiles`, [B, C, T, H, W] each.
            size: frames, rows and columns of the latents.
        """
        times, rows, columns = self._spans(size)
        each = len(rows) * len(columns)
        pictures = [
            self._picture(decoded[first : first + each], size) for first in range(0, len(decoded), each)
        ]
        if self.frames is None or len(times) == 1:
            return _join(pictures, FRAMES)
        parts = []
        cut = [picture.narrow(FRAMES, 1, picture.shape[FRAMES] - 1) for picture in pictures[1:]]
        for index, picture in enumerate([pictures[0], *cut]):
            if index:
                blend_((pictures[0], *cut)[index - 1], picture, self.frames.blend, FRAMES)
            parts.append(_first(picture, self.frames.keep + (index == 0), FRAMES))
        return _first(_join(parts, FRAMES), 1 + (size[0] - 1) * self.scale[0], FRAMES)

    def _spans(self, size: Sequence[int]) -> list[list[tuple[int, int]]]:
        frames, height, width = size
        times, rows, columns = [(0, frames)], [(0, height)], [(0, width)]
        if self.frames and frames > self.frames.size:
            times = _pieces(frames, self.frames.size + 1, self.frames.step)
        if self.rows and self.columns and (height > self.rows.size or width > self.columns.size):
            rows = _pieces(height, self.rows.size, self.rows.step)
            columns = _pieces(width, self.columns.size, self.columns.step)
        return [times, rows, columns]

    def _picture(self, tiles: Sequence[torch.Tensor], size: Sequence[int]) -> torch.Tensor:
        """Blend the tiles of one span of time."""
        if len(tiles) == 1:
            return tiles[0]
        assert self.rows
        assert self.columns
        across = len(self._spans(size)[2])
        bands = []
        for index, tile in enumerate(tiles):
            if index >= across:
                blend_(tiles[index - across], tile, self.rows.blend, ROWS)
            if index % across:
                blend_(tiles[index - 1], tile, self.columns.blend, COLUMNS)
        for first in range(0, len(tiles), across):
            row = [
                _first(_first(tile, self.rows.keep, ROWS), self.columns.keep, COLUMNS)
                for tile in tiles[first : first + across]
            ]
            bands.append(_join(row, COLUMNS))
        picture = _join(bands, ROWS)
        return _first(_first(picture, size[1] * self.scale[1], ROWS), size[2] * self.scale[2], COLUMNS)


def blend_(before: torch.Tensor, after: torch.Tensor, extent: int, dim: int) -> None:
    """Fade the begin of a tile in from the end of the one before it, along one dimension, in place."""
    extent = min(before.shape[dim], after.shape[dim], extent)
    shape = [1] * after.ndim
    shape[dim] = extent
    # A weight is rounded to float32 where values are narrower, as PyTorch does with a Python number.
    share = torch.tensor([1 - at / extent for at in range(extent)], dtype=torch.float64).view(shape)
    rest = torch.tensor([at / extent for at in range(extent)], dtype=torch.float64).view(shape)
    ending, begin = before.narrow(dim, before.shape[dim] - extent, extent), after.narrow(dim, 0, extent)
    wide = at_least_float32(begin)
    fading = (at_least_float32(ending) * share.to(wide)).to(after.dtype)
    begin.copy_(fading + (wide * rest.to(wide)).to(after.dtype))


def _pieces(length: int, size: int, step: int) -> list[tuple[int, int]]:
    return [(first, min(size, length - first)) for first in range(0, length, step)]


def _first(x: torch.Tensor, count: int, dim: int) -> torch.Tensor:
    return x.narrow(dim, 0, min(count, x.shape[dim]))


def _join(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
