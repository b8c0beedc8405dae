"""Dissolves: the ends of a window show two scenes, its middle a mixture of both.

The linear model x = (1 - a) A + a B, with a rising from 0 to 1, says three things that motion, however fast,
does not do at once: the middle shares structure with both ends, though these share none with one another; the
energy of the fine structure, adding up from two unrelated scenes, falls to half (Alattar 1993, the parabola of
the variance); and a regression of the middle on both ends gives both a positive share.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.shots.features import (
    STRUCTURE_FLOOR,
    Features,
    Floats,
    colour_difference,
    structure_difference,
    unshifted_difference,
)
from curate.shots.history import History
from curate.shots.lags import Lags

HALF_WIDTHS = (3, 5, 8, 12, 16, 22)
"""Half the frames of the windows tried; a dissolve is found by one that covers it and little more."""

_MIN_SHARE = 0.05  # of each end in the middle
_MIN_ENERGY = 0.25  # of the middle, relative to the ends: a mixture keeps half, an empty picture keeps less
_MIN_DIFFERENCE = 0.6  # of the ends; saves the comparisons with the middle
_MIDDLE_WEIGHT = 0.5  # of what the middle differs from the ends
_DIP_WEIGHT = 0.25  # of the fall of the energy to half
_CUT_OFF = 0.05  # off the score of a window that does not reach beyond both edges: a wider one may
_LONGEST = 2 * max(HALF_WIDTHS)


class Dissolve(NamedTuple):
    """A dissolve in the frames looked at.

    Attributes:
        score: How sure it is; a static dissolve comes to about 1.2.
        start_frame: The last frame without a share of the incoming scene.
        end_frame: The first frame without a share of the outgoing scene.
    """

    score: float
    start_frame: int
    end_frame: int


class Screen:
    """Tells cheaply, many frames at a time, which windows cannot hold a dissolve.

    Args:
        colour_weight: Weight of colour in the difference of pictures.
        above: The score that a dissolve must exceed.
    """

    def __init__(self, colour_weight: float, above: float) -> None:
        self._colour_weight = colour_weight
        self._above = above
        self._fine = Lags([2 * half for half in HALF_WIDTHS])
        self._layout = Lags([0, *HALF_WIDTHS, *(2 * half for half in HALF_WIDTHS)])
        self._energies = np.full(_LONGEST, STRUCTURE_FLOOR, np.float32)
        self._products = np.zeros((_LONGEST, 1 + 2 * len(HALF_WIDTHS)), np.float32)

    def push(self, features: Sequence[Features]) -> list[list[int]]:
        """Half widths of the windows that end at each of the next frames and may hold a dissolve."""
        count = len(features)
        fine = self._fine.push(np.stack([each.fine for each in features]))
        layout = self._layout.push(np.stack([each.layout for each in features]))
        energies = np.concatenate([self._energies, np.array([each.energy for each in features], np.float32)])
        products = np.concatenate([self._products, layout])
        self._energies, self._products = energies[count:], products[count:]
        found: list[list[int]] = [[] for _ in features]
        for number, half in enumerate(HALF_WIDTHS):
            first, middle, last = (
                slice(_LONGEST - back, _LONGEST - back + count) for back in (2 * half, half, 0)
            )
            ends = energies[first] + energies[last]
            energy = 2 * energies[middle] / ends
            shares = _solved(
                products[first, 0],
                products[last, 0],
                products[last, 1 + len(HALF_WIDTHS) + number],
                products[middle, 1 + number],
                products[last, 1 + number],
            )
            most = 1 - fine[:, number] - STRUCTURE_FLOOR / np.sqrt(energies[first] * energies[last])
            most += self._colour_weight
            possible = (
                (most >= _MIN_DIFFERENCE)
                & (most + _DIP_WEIGHT * _dip(energy) > self._above)
                & (energy >= _MIN_ENERGY)
                & (np.minimum(*shares) >= _MIN_SHARE)
            )
            for frame in np.flatnonzero(possible):
                found[frame].append(half)
        return found


def best_dissolve(
    history: History, first: int, last: int, halves: Sequence[int], colour_weight: float, above: float
) -> Dissolve | None:
    """The best of the dissolves that score above `above` in windows of half widths `halves`, within first..last."""
    found = []
    for half in halves:
        begin = last - 2 * half
        if begin < first:
            break
        score = mixture_score(history[begin], history[last - half], history[last], colour_weight, above)
        if score is not None:
            found.append(_fitted(history, begin, last, score))
    best = max(found, default=None)
    return best if best is not None and best.score > above else None


def mixture_score(
    a: Features, middle: Features, b: Features, colour_weight: float, above: float
) -> float | None:
    """How well three pictures, evenly spaced in time, that the screen let through fit the middle of a dissolve.

    None for a score up to `above`.
    """
    colour = colour_weight * colour_difference(a, b)
    dip = _DIP_WEIGHT * float(_dip(np.float32(2 * middle.energy / (a.energy + b.energy))))
    if unshifted_difference(a, b) + colour + dip <= above:
        return None
    difference = structure_difference(a, b) + colour
    if difference < _MIN_DIFFERENCE or difference + dip <= above:
        return None
    to_middle = (structure_difference(a, middle) + structure_difference(middle, b)) / 2
    score = difference - _MIDDLE_WEIGHT * to_middle + dip
    return score if score > above else None


def _fitted(history: History, first: int, last: int, score: float) -> Dissolve:
    """The edges of a dissolve within frames first..last, and its score less what speaks against it.

    A ramp from 0 to 1 is fitted in least squares to (1 - share of the first picture + share of the last) / 2
    in every frame. Motion lowers both shares, so that it moves the edges outwards if anything: better a frame
    lost than a mixed frame kept.
    """
    layouts = np.stack([history[frame].layout for frame in range(first, last + 1)])
    shares = _shares(layouts, layouts[0], layouts[-1]).clip(0, 1)
    incoming = (1 - shares[:, 0] + shares[:, 1]) / 2
    edges, ramps = _ramps(len(layouts))
    errors = np.square(ramps - incoming).mean(axis=1)
    best = int(errors.argmin())
    start, end = (first + int(edge) for edge in edges[best])
    cut_off = 0.0 if first < start and end < last else _CUT_OFF
    return Dissolve(score - float(np.sqrt(errors[best])) - cut_off, start, end)


def _dip(energy: Floats | np.float32) -> Floats | np.float32:
    """How far the energy of the middle, relative to the ends, falls to the half of a mixture; from 0 to 1."""
    dip: Floats = np.clip(-np.log2(energy), 0, 1)
    return dip


def _shares(pictures: Floats, a: Floats, b: Floats) -> Floats:
    """Least-squares shares of pictures a and b in each of the pictures, [pictures, 2]."""
    return np.stack(_solved(a @ a, b @ b, a @ b, pictures @ a, pictures @ b), axis=1)


def _solved(aa: Floats, bb: Floats, ab: Floats, ax: Floats, bx: Floats) -> tuple[Floats, Floats]:
    """The shares of a and of b in x, in least squares, from the inner products of the three."""
    # A little more than the products, for ends that are the same picture.
    norm_a, norm_b = (np.float32(1.001) * each + np.float32(1) for each in (aa, bb))
    area = norm_a * norm_b - ab * ab
    share_a: Floats = (norm_b * ax - ab * bx) / area
    share_b: Floats = (norm_a * bx - ab * ax) / area
    return share_a, share_b


@cache
def _ramps(frames: int) -> tuple[NDArray[np.intp], Floats]:
    """All ramps from 0 to 1 over `frames` frames: last frame at 0 and first frame at 1, [ramps, 2], and values."""
    edges = np.argwhere(np.arange(frames)[:, None] < np.arange(frames))
    start, end = edges[:, :1], edges[:, 1:]
    return edges, ((np.arange(frames) - start) / (end - start)).clip(0, 1).astype(np.float32)
