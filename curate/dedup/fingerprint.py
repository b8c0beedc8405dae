"""Fingerprint of a clip: small grey pictures without bars, and the agreement of two fingerprints.

Pictures that are compared are half a second apart. Clips of the same footage rarely begin at the same fraction of it,
so a fingerprint has pictures at four such fractions, and the best of them is compared.

Agreement is local. Two shots of one fixed camera differ only where something moves, so the blocks with the
lowest agreement decide. A small search undoes a slight crop or scaling first.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelweave.loader.base.operations import charged

WIDTH, HEIGHT = 48, 27
PICTURES_PER_S = 8.0
ARRAY = ".fingerprint8"
"""Suffix of a fingerprint's name among the arrays of its source."""
SPARSE_ARRAY = ".fingerprint"
"""Suffix of one with two pictures a second, as versions before revision 30 wrote it; see `dense`."""

Floats = NDArray[np.float32]
PrintPictures = NDArray[np.uint8]
"""Pictures of a fingerprint, uint8 [n, HEIGHT, WIDTH], PICTURES_PER_S per second: 10 KB per second."""
Box = tuple[float, float, float]
"""(left, top, scale) of a crop, as shares of the picture."""

_PHASES = 4  # pictures of a fingerprint for each one that is compared
_BAR = 16.0  # luminance below which borders are bars
_BLOCKS = (8, 6)  # columns, rows
_FLOOR = 30.0  # variance of coding noise, grey levels squared
_WORST_SHARE = 0.05  # share of the worst blocks; the best of them is the agreement
_FEWER_WORST = 0.25  # share of the worst blocks in the crop search, for a smoother objective
_REFINEMENTS = (0.025, 0.0125, 0.006)  # steps of moving and resizing a crop
_SCALES = (1.0, 0.95, 0.9, 0.85)
_STEPS = (0.0, 0.5, 1.0)  # initial positions of a crop, as a share of the remaining margin
_FIRST_BOXES: tuple[Box, ...] = (
    (0.0, 0.0, 1.0),
    *(((1 - scale) * x, (1 - scale) * y, scale) for scale in _SCALES[1:] for x in _STEPS for y in _STEPS),
)
_LEAST_STILL = 0.45  # minimum agreement of the pictures, whatever the agreement of their changes
_STILL_POWER = 3  # without motion as evidence, still parts must agree almost perfectly
_CHANGE_FLOOR = 2.0  # change caused by coding noise, grey levels squared
_COARSE = 0.6  # minimum overall correlation for a detailed comparison


class Match(NamedTuple):
    """Agreement of two clips at their best alignment.

    Attributes:
        agreement: Agreement of the least similar blocks in the least similar pictures; 1 for the same
            footage.
        shared_s: Length of the footage that both show, seconds.
    """

    agreement: float
    shared_s: float


def dense(sparse: NDArray[np.uint8]) -> PrintPictures:
    """Return a fingerprint of two pictures a second as one of PICTURES_PER_S: each stands for its half second."""
    return np.repeat(sparse, _PHASES, axis=0)


def overlap(original: PrintPictures | None, other: PrintPictures | None, min_overlap: float) -> Match | None:
    """Return the best agreement of a clip with a kept one; None where one has no fingerprint or is too short.

    Args:
        original: Fingerprint of the kept clip.
        other: Fingerprint of the other clip.
        min_overlap: Minimum share of the other clip's pictures that must be aligned.
    """
    if original is None or other is None:
        return None
    compared = len(other[::_PHASES])
    min_shared = max(2, math.ceil(min_overlap * compared))
    return (
        match(original, other, min_shared) if min(len(original[::_PHASES]), compared) >= min_shared else None
    )


def match(a: PrintPictures, b: PrintPictures, min_shared: int) -> Match:
    """Return the best agreement of two fingerprints over time offsets, crops and scales.

    Args:
        a: uint8 [n, HEIGHT, WIDTH].
        b: uint8 [m, HEIGHT, WIDTH].
        min_shared: Minimum number of aligned pictures, half a second apart.
    """
    every = b[::_PHASES]
    best = Match(0.0, 0.0)
    for similarity, phase, offset in sorted(_offsets(a, every, min_shared), reverse=True)[:3]:
        if similarity < _COARSE:
            break
        phased = a[phase::_PHASES]
        first = max(0, -offset)
        shared = min(len(phased) - first, len(every) - first - offset)
        ours, other = phased[first : first + shared], every[first + offset : first + offset + shared]
        agreement = max(_best_crop(ours, other), _best_crop(other, ours))
        best = max(best, Match(agreement, shared * _PHASES / PICTURES_PER_S))
    return best


def _offsets(a: PrintPictures, every: PrintPictures, min_shared: int) -> Iterator[tuple[float, int, int]]:
    """Yield for each offset the overall correlation at its best phase, this phase of ``a``, and the offset."""
    correlations = _coarse(a) @ _coarse(every).T  # [n, m]
    for offset in range(min_shared - len(a[::_PHASES]), len(every) - min_shared + 1):
        phases = []
        for phase in range(_PHASES):
            diagonal = np.diagonal(correlations[phase::_PHASES], offset)
            if len(diagonal) >= min_shared:
                phases.append((statistics.median(diagonal.tolist()), phase))
        if phases:
            yield *max(phases), offset


def _best_crop(full: NDArray[np.uint8], part: NDArray[np.uint8]) -> float:
    """Return the agreement of ``part`` with its best crop of ``full``: a coarse grid on few pictures, refined."""
    # The crop is sought on a few pictures, since most pairs of clips have none.
    few = np.unique(np.linspace(0, len(full) - 1, min(3, len(full))).astype(int))
    sampled, part_blocks = full[few], _blocks(part[few].astype(np.float32))

    def try_box(boxes: Sequence[Box]) -> tuple[float, Box]:
        agreements = _agreement(_blocks(_crops(sampled, boxes)), part_blocks, _FEWER_WORST)
        return max(zip(agreements.mean(axis=1).tolist(), boxes, strict=True))

    best = try_box(_FIRST_BOXES)
    for step in _REFINEMENTS:
        improved = True
        while improved:
            nearby = try_box(_nearby(best[1], step))
            improved = nearby[0] > best[0]
            best = max(best, nearby)
    # Then all pictures of both are compared, under the best crop.
    (cropped,) = _crops(full, [best[1]])
    blocks = _blocks(part.astype(np.float32))
    still = float(np.median(_agreement(_blocks(cropped), blocks, _WORST_SHARE)))
    if still < _LEAST_STILL:
        return 0.0
    # What moves is better evidence than what stands still, where anything moves.
    moving, evidence = _changes_alike(cropped, part.astype(np.float32))
    return evidence * moving + (1 - evidence) * still**_STILL_POWER


def _nearby(box: Box, step: float) -> list[Box]:
    left, top, scale = box
    moves = [(step, 0.0, 0.0), (0.0, step, 0.0), (step / 2, step / 2, -step)]
    boxes = []
    for right, down, wider in moves:
        for sign in (1, -1):
            size = scale + sign * wider
            x, y = left + sign * right, top + sign * down
            if _SCALES[-1] - 0.02 <= size <= 1 and 0 <= x <= 1 - size + 1e-9 and 0 <= y <= 1 - size + 1e-9:
                boxes.append((x, y, size))
    return boxes or [box]


def _agreement(ours: Floats, other: Floats, worst_share: float) -> Floats:
    """Return the agreement of pictures in blocks, pair by pair, [..., n]: the best of the worst share of blocks."""
    ours = ours - ours.mean(axis=-1, keepdims=True)
    other = other - other.mean(axis=-1, keepdims=True)
    together = (ours * other).mean(axis=-1)
    energy = ((ours * ours).mean(axis=-1) + (other * other).mean(axis=-1)) / 2
    alike = (together + _FLOOR) / (energy + _FLOOR)  # [..., n, blocks]
    worst = max(1, round(alike.shape[-1] * worst_share))
    return np.asarray(np.sort(alike, axis=-1)[..., worst - 1], np.float32)


def _changes_alike(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the agreement of changes from picture to picture, and the weight of this evidence, both at most 1.

    Two stretches of one fixed camera agree in everything still; motion distinguishes them. Where hardly
    anything moves, the weight is near 0.

    Args:
        a: float32 [n, HEIGHT, WIDTH].
        b: float32 [n, HEIGHT, WIDTH].
    """
    ours, other = np.diff(a, axis=0), np.diff(b, axis=0)
    energy = float((ours * ours).sum() + (other * other).sum()) / 2
    moving = float((ours * other).sum()) / max(energy, 1e-6)
    return max(0.0, moving), energy / (energy + _CHANGE_FLOOR * max(1, ours.size))


def _blocks(pictures: Floats) -> Floats:
    """Reshape [..., HEIGHT, WIDTH] to [..., blocks, pixels]; rows and columns beyond the last block are dropped."""
    columns, rows = _BLOCKS
    high, wide = HEIGHT // rows, WIDTH // columns
    inner = pictures[..., : high * rows, : wide * columns]
    parts = inner.reshape(*pictures.shape[:-2], rows, high, columns, wide).swapaxes(-3, -2)
    return np.asarray(parts.reshape(*pictures.shape[:-2], rows * columns, high * wide))


def _crops(pictures: NDArray[np.uint8], boxes: Sequence[Box]) -> Floats:
    """Return crops of pictures [n, HEIGHT, WIDTH], scaled up to the same size: [boxes, n, HEIGHT, WIDTH]."""
    left, top, scale = np.array(boxes).T[..., None]
    rows, down = _positions(HEIGHT, top, scale)
    columns, right = _positions(WIDTH, left, scale)
    images = pictures.astype(np.float32)
    across = images[:, :, columns] * (1 - right) + images[:, :, np.minimum(columns + 1, WIDTH - 1)] * right
    box, down = np.arange(len(boxes))[:, None], down[..., None]
    # across is [n, HEIGHT, boxes, WIDTH]
    cropped = across[:, rows, box] * (1 - down) + across[:, np.minimum(rows + 1, HEIGHT - 1), box] * down
    return np.asarray(cropped.swapaxes(0, 1))


def _positions(
    size: int, start: NDArray[np.float64], scale: NDArray[np.float64]
) -> tuple[NDArray[np.intp], Floats]:
    """Return the pixel before each sample of the crops, and the sample's offset to the next: both [boxes, size]."""
    centres = (np.arange(size) + 0.5) * scale + start * size - 0.5
    low = np.floor(centres).clip(0, size - 1).astype(np.intp)
    return low, (centres - low).clip(0, 1).astype(np.float32)


def _coarse(pictures: NDArray[np.uint8]) -> Floats:
    """Return pictures at a third of their size, mean removed, unit length: [n, 144]."""
    thirds = (
        pictures.astype(np.float32).reshape(len(pictures), HEIGHT // 3, 3, WIDTH // 3, 3).mean(axis=(2, 4))
    )
    flat = thirds.reshape(len(pictures), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), _FLOOR))


@charged("fingerprints")
def print_picture(picture: NDArray[np.uint8]) -> PrintPictures:
    """Return a picture of a fingerprint, uint8 [HEIGHT, WIDTH]: grey, without bars, from uint8 [h, w, 3] RGB."""
    luma = (picture.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.uint8)
    lit = luma > _BAR
    rows, columns = np.flatnonzero(lit.any(axis=1)), np.flatnonzero(lit.any(axis=0))
    if len(rows) >= len(luma) // 3 and len(columns) >= luma.shape[1] // 3:
        luma = luma[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return np.asarray(Image.fromarray(luma).resize((WIDTH, HEIGHT), Image.Resampling.BOX))
