"""Dissolves: the ends of a window show two scenes, its middle a mixture of both.

The linear model x = (1 - a) A + a B, with a rising from 0 to 1, says three things that motion, however fast,
does not do at once: the middle shares structure with both ends, though these share none with one another; the
energy of the fine structure, adding up from two unrelated scenes, falls to half (Alattar 1993, the parabola of
the variance); and a regression of the middle on both ends gives both a positive share.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curate.shots.features import Features, colour_difference, structure_difference, unshifted_difference
from curate.shots.history import History

HALF_WIDTHS = (3, 5, 8, 12, 16, 22)
"""Half the frames of the windows tried; a dissolve is found by one that covers it and little more."""

_MIN_SHARE = 0.05  # of each end in the middle
_MIN_ENERGY = 0.25  # of the middle, relative to the ends: a mixture keeps half, an empty picture keeps less
_MIN_DIFFERENCE = 0.6  # of the ends; saves the comparisons with the middle
_MIDDLE_WEIGHT = 0.5  # of what the middle differs from the ends
_DIP_WEIGHT = 0.25  # of the fall of the energy to half
_CUT_OFF = 0.05  # off the score of a window that does not reach beyond both edges: a wider one may

Floats = NDArray[np.float32]


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


def best_dissolve(
    history: History, first: int, last: int, colour_weight: float, threshold: float
) -> Dissolve | None:
    """The best of the dissolves above the threshold in windows that end at `last` and begin at `first` or later."""
    found = []
    for half in HALF_WIDTHS:
        begin = last - 2 * half
        if begin < first:
            break
        score = mixture_score(history[begin], history[last - half], history[last], colour_weight)
        if score > threshold:
            found.append(_fitted(history, begin, last, score))
    best = max(found, default=None)
    return best if best is not None and best.score > threshold else None


def mixture_score(a: Features, middle: Features, b: Features, colour_weight: float) -> float:
    """How well three pictures, evenly spaced in time, fit the middle of a dissolve; 0 when they cannot."""
    if unshifted_difference(a, b) + colour_weight < _MIN_DIFFERENCE:
        return 0.0
    energy = 2 * middle.energy / (a.energy + b.energy)
    if energy < _MIN_ENERGY:
        return 0.0
    share_a, share_b = _shares(np.stack([middle.layout]), a.layout, b.layout)[0]
    if min(share_a, share_b) < _MIN_SHARE:
        return 0.0
    difference = structure_difference(a, b) + colour_weight * colour_difference(a, b)
    if difference < _MIN_DIFFERENCE:
        return 0.0
    to_middle = (structure_difference(a, middle) + structure_difference(middle, b)) / 2
    dip = min(1.0, max(0.0, -float(np.log2(energy))))
    return difference - _MIDDLE_WEIGHT * to_middle + _DIP_WEIGHT * dip


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


def _shares(pictures: Floats, a: Floats, b: Floats) -> Floats:
    """Least-squares shares of pictures a and b in each of the pictures, [pictures, 2]."""
    ends = np.stack([a, b])
    gram = ends @ ends.T
    gram[np.diag_indices(2)] = 1.001 * gram.diagonal() + 1  # for ends that are the same picture
    shares: Floats = np.linalg.solve(gram, ends @ pictures.T).T
    return shares


@cache
def _ramps(frames: int) -> tuple[NDArray[np.intp], Floats]:
    """All ramps from 0 to 1 over `frames` frames: last frame at 0 and first frame at 1, [ramps, 2], and values."""
    edges = np.argwhere(np.arange(frames)[:, None] < np.arange(frames))
    start, end = edges[:, :1], edges[:, 1:]
    return edges, ((np.arange(frames) - start) / (end - start)).clip(0, 1).astype(np.float32)
