"""Scores of still pictures (frozen clips, repeated frames, slideshows) and of flicker."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.light import STANDS_OUT, SUBJECT
from reelweave.curate.filters.sample import ClipSample, Floats
from reelweave.loader.base.operations import charged

_TILE_PX = 16
_STILL = 2.0
"""Maximum change of the most changed tile of a still picture, grey levels.

Stills encoded from crf 18 to 300 kb/s change by 1.4 or less in nine intervals of ten. The calmest real
footage (fog, a parked car) changes by 2.6 or more.
"""
_POP = 12.0  # maximum change caused by a key frame, for one interval
_REPEATED = 0.02  # maximum coding noise of a repeated frame at 64x36, grey levels
_NEW_SLIDE = 8.0  # minimum mean difference of two slides, grey levels


@charged("scores: still pictures")
def still_scores(sample: ClipSample) -> dict[str, float]:
    """Return the scores of stillness and flicker.

    ``frozen_share`` is the share of intervals between pictures without any change. ``slideshow`` is the same
    share where the clip holds at least two different stills, else 0. ``duplicate_share`` is the share of
    frames that repeat the one before (drawn on twos, pulled down, dropped by a recorder). ``flicker`` is the
    mean amplitude of the brightness from frame to frame, 0 to 255.
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
    """Return a mask of the still intervals between pictures, [n - 1], for luminance [n, h, w].

    The most changed tile decides, so that a mouse in an empty room counts as motion. Points that change much,
    such as stars, count too, although no tile shows them. A single change between two stills is a key frame
    and no motion, unless it is large.
    """
    changes = [np.abs(after - before) for before, after in pairwise(grey)]
    change = np.array([_tile_peak(picture_change) for picture_change in changes])
    frozen = (change <= _STILL) & np.array(
        [(picture_change > STANDS_OUT).mean() < SUBJECT for picture_change in changes]
    )
    beside = np.concatenate([[True], frozen[:-1]]) & np.concatenate([frozen[1:], [True]])
    if len(frozen) > 1:
        frozen |= beside & (change <= _POP)
    return np.asarray(frozen, np.bool_)


def flicker(luma: Floats) -> float:
    """Return the mean amplitude of the brightness from frame to frame; light that alternates by plus and minus a has a.

    It is a quarter of the second difference, so that a fade or a pan into the light counts as nothing.
    """
    if len(luma) < 3:
        return 0.0
    return float(np.abs(np.diff(luma.astype(np.float64), n=2)).mean()) / 4


def _slides(grey: Floats, frozen: NDArray[np.bool_]) -> int:
    """Count successive different stills of at least two intervals each."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], frozen.view(np.int8), [0]])))
    shown: list[Floats] = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        picture = grey[(first + last) // 2]
        if last - first >= 2 and (not shown or np.abs(picture - shown[-1]).mean() > _NEW_SLIDE):
            shown.append(picture)
    return len(shown)


def _tile_peak(change: Floats) -> float:
    """Return the mean of the tile with the largest mean, for [h, w]; the rest at the edges joins no tile."""
    height, width = (max(1, size // _TILE_PX) for size in change.shape)
    rows, columns = min(_TILE_PX, change.shape[0]), min(_TILE_PX, change.shape[1])
    cropped = change[: height * rows, : width * columns]
    sums = (
        cropped.reshape(height, rows, width * columns).sum(axis=1).reshape(height, width, columns).sum(axis=2)
    )
    return float(sums.max() / (rows * columns))
