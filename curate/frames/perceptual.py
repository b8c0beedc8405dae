"""Perceptual embedding of pictures without weights: light and dark, edge orientations and some colour.

Used where no understanding is needed: stitching, near-duplicates, search by example, and the offline default
of the dataset's video embeddings. Structure has the largest weight, so that other encodings, sizes and hues
stay close. Edges are counted in cells and pooled, so that a slight crop stays close too.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelweave.loader.base.operations import charged

PICTURE = (64, 36)
"""(width, height) of the embedded pictures."""

DIMENSIONS = 264

_LIGHT, _EDGES, _COLOUR = (
    0.7,
    0.6,
    0.25,
)  # weights of the three parts; the cosine weights parts by their squares
_CELLS = (4, 3)  # columns and rows of the pooling cells for edges and colours
_ORIENTATIONS = 8
_FLAT = 4.0  # grey levels: contrast below which a picture has hardly any structure
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_COLOURFUL = 48.0  # levels of chroma that count as full colour

Floats = NDArray[np.float32]


def describe(pictures: NDArray[np.uint8]) -> Floats:
    """Return the descriptors of pictures; each depends on its own picture alone.

    Args:
        pictures: uint8 [n, 36, 64, 3] RGB.

    Returns:
        float32 [n, DIMENSIONS], unit length; the cosine of two is about 1 for the same scene and near 0 for
        others.
    """
    rgb = pictures.astype(np.float32)
    luma = (rgb[..., 0] * _LUMA[0] + rgb[..., 1] * _LUMA[1]) + rgb[..., 2] * _LUMA[2]
    parts = [
        _unit(_light(luma), _FLAT * np.sqrt(144)) * _LIGHT,
        _unit(_edges(luma), _FLAT * 2) * _EDGES,
        _colour(rgb, luma) * _COLOUR,
    ]
    descriptors = np.concatenate(parts, axis=1)
    lengths = _lengths(descriptors)
    even = lengths[:, 0] < 1e-6  # one even grey: all such pictures get the same descriptor
    descriptors[even, -1], lengths[even] = 1.0, 1.0
    return np.asarray(descriptors / lengths, np.float32)


def pool(descriptors: NDArray[np.floating]) -> Floats:
    """Return the embedding of a clip: the mean of its picture descriptors [n, DIMENSIONS], scaled to unit length."""
    mean = np.asarray(descriptors, np.float32).mean(axis=0)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-6), np.float32)


@charged("fingerprints")
def embed_pictures(pictures: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Embed a clip from pictures uint8 [n, h, w, 3] of any size; float16 [DIMENSIONS], unit length."""
    small = [
        np.asarray(Image.fromarray(picture).resize(PICTURE, Image.Resampling.BOX)) for picture in pictures
    ]
    return pool(describe(np.stack(small))).astype(np.float16)


def _light(luma: Floats) -> Floats:
    """Return the luminance in 16 x 9 cells minus its mean, [n, 144]."""
    cells = luma.reshape(-1, 9, 4, 16, 4).mean(axis=(2, 4)).reshape(-1, 144)
    return np.asarray(cells - cells.mean(axis=1, keepdims=True), np.float32)


def _edges(luma: Floats) -> Floats:
    """Return histograms of edge orientations, weighted by strength, per cell, minus each cell's mean, [n, 96]."""
    down, right = np.gradient(luma, axis=(1, 2))
    strength = np.hypot(down, right)
    bins = (np.arctan2(down, right) % np.pi / np.pi * _ORIENTATIONS).astype(np.intp) % _ORIENTATIONS
    columns, rows = _CELLS
    cells = columns * rows
    cell = (np.arange(36)[:, None] * rows // 36) * columns + np.arange(64)[None, :] * columns // 64
    cell_indices = np.arange(len(luma))[:, None, None] * cells + cell
    sums = np.bincount(
        (cell_indices * _ORIENTATIONS + bins).ravel(), strength.ravel(), len(luma) * cells * _ORIENTATIONS
    )
    table = np.sqrt(sums / (36 * 64 / cells)).reshape(len(luma), cells, _ORIENTATIONS)
    return np.asarray(table - table.mean(axis=2, keepdims=True), np.float32).reshape(len(luma), -1)


def _colour(rgb: Floats, luma: Floats) -> Floats:
    """Return the mean chroma of each cell, [n, 24], with a norm of about 1 at most."""
    columns, rows = _CELLS
    chroma = np.stack([rgb[..., 2] - luma, rgb[..., 0] - luma], axis=-1)
    cells = chroma.reshape(-1, rows, 36 // rows, columns, 64 // columns, 2).mean(axis=(2, 4))
    flat = cells.reshape(len(rgb), -1)
    return np.asarray(np.clip(flat / _COLOURFUL, -1, 1) / np.sqrt(flat.shape[1]), np.float32)


def _unit(values: Floats, floor: float) -> Floats:
    """Scale rows to unit length, or to less where their length is below the floor, [n, D]."""
    return np.asarray(values / np.maximum(_lengths(values), floor), np.float32)


def _lengths(values: Floats) -> Floats:
    return np.asarray(np.sqrt((values * values).sum(axis=1, keepdims=True)), np.float32)
