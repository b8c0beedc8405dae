"""Pictures that stand still: frozen clips, repeated frames, slideshows; and light that flickers."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curate.filters.light import STANDS_OUT, SUBJECT
from curate.filters.sample import ClipSample, Floats

_TILE_PX = 16
_STILL = 2.0
"""Grey levels by which the most changed tile of a still picture changes at most.

Stills that were encoded from crf 18 to 300 kb/s change by 1.4 or less in nine intervals of ten, real footage of
the calmest kind (fog, a parked car) by 2.6 or more.
"""
_POP = 12.0  # a key frame may look that different for one interval
_REPEATED = 0.02  # grey levels at 64x36: a repeated frame after its codec
_NEW_SLIDE = 8.0  # mean grey levels between two stills that are not the same


def still_scores(sample: ClipSample) -> dict[str, float]:
    """Scores of stillness and flicker.

    ``frozen_share`` of the time between pictures in which nothing changes anywhere; ``slideshow``: the same share
    where the clip holds at least two stills that differ, else 0; ``duplicate_share`` of the frames that repeat
    the one before (drawn on twos, pulled down, dropped by a recorder); ``flicker``: mean amplitude of the
    brightness from frame to frame, 0 to 255.
    """
    repeated = sample.steps[1:] <= _REPEATED
    duplicate_share = float(repeated.mean()) if len(repeated) else 0.0
    if len(sample.pictures) < 2:
        frozen_share, slides = float(repeated.all()), 1
    else:
        frozen = frozen_intervals(sample.grey)
        frozen_share, slides = float(frozen.mean()), _slides(sample.grey, frozen)
    return {
        "frozen_share": frozen_share,
        "slideshow": frozen_share if slides > 1 else 0.0,
        "duplicate_share": duplicate_share,
        "flicker": flicker(sample.luma),
    }


def frozen_intervals(grey: Floats) -> NDArray[np.bool_]:
    """Whether the picture stands still between neighbours, [n - 1], for luminance [n, h, w].

    The most changed of all tiles decides, so that a mouse in an empty room counts as motion; so do points that
    change much, such as stars, which no tile shows. A single change between two stills is a key frame and no
    motion, unless it is large.
    """
    changes = [np.abs(after - before) for before, after in pairwise(grey)]
    change = np.array([_tile_peak(one) for one in changes])
    frozen = (change <= _STILL) & np.array([(one > STANDS_OUT).mean() < SUBJECT for one in changes])
    beside = np.concatenate([[True], frozen[:-1]]) & np.concatenate([frozen[1:], [True]])
    if len(frozen) > 1:
        frozen |= beside & (change <= _POP)
    return np.asarray(frozen, np.bool_)


def flicker(luma: Floats) -> float:
    """Mean amplitude of the brightness from frame to frame: of light that alternates by plus and minus a, a.

    A quarter of the second difference, so that a fade or a pan into the light counts as nothing.
    """
    if len(luma) < 3:
        return 0.0
    return float(np.abs(np.diff(luma.astype(np.float64), n=2)).mean()) / 4


def _slides(grey: Floats, frozen: NDArray[np.bool_]) -> int:
    """How many stills of at least two intervals follow each other, each unlike the one before."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], frozen.view(np.int8), [0]])))
    shown: list[Floats] = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        picture = grey[(first + last) // 2]
        if last - first >= 2 and (not shown or np.abs(picture - shown[-1]).mean() > _NEW_SLIDE):
            shown.append(picture)
    return len(shown)


def _tile_peak(change: Floats) -> float:
    """The mean of the tile with the largest mean, for [h, w]; what is left over at the edges joins no tile."""
    height, width = (max(1, size // _TILE_PX) for size in change.shape)
    rows, columns = min(_TILE_PX, change.shape[0]), min(_TILE_PX, change.shape[1])
    whole = change[: height * rows, : width * columns]
    sums = (
        whole.reshape(height, rows, width * columns).sum(axis=1).reshape(height, width, columns).sum(axis=2)
    )
    return float(sums.max() / (rows * columns))
