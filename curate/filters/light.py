"""Scores of black and white pictures, exposure, contrast and colour."""

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.sample import ClipSample, Floats
from reelweave.loader.base.operations import charged

_DARK, _BRIGHT = 25, 230
_ALL = 0.98
"""Share of dark pixels above which a picture may be black, as in FFmpeg's ``blackdetect``."""

STANDS_OUT, SUBJECT = 30.0, 5e-4
"""Difference in grey levels that makes a pixel stand out, and the share of such pixels that makes a subject.

Stars, a moon, lit windows, a dancer on a dark stage and lines on white paper cover 0.1 to 1 percent. Noise,
dust on black leader and coding artefacts of a uniform picture cover 0.02 percent or less.
"""

_CRUSHED, _CLIPPED = 4, 251  # limits of full black and white, which codecs and scaling shift by a few levels
_STEP = 2  # sampling step of histograms, rows and columns


@charged("scores: light")
def light_scores(sample: ClipSample) -> dict[str, float]:
    """Return the scores of light and colour, from pictures without bars.

    ``black_share`` and ``white_share`` are the shares of pictures that are dark or bright and show nothing.
    ``luminance`` is its mean, and ``contrast`` the 95th minus the 5th percentile in the median picture, both
    0 to 255. ``crushed_share`` and ``clipped_share`` are the shares of pixels that are fully black or white.
    ``colourfulness`` is that of the median picture (Hasler and Suesstrunk 2003).
    """
    shares = _cumulative(sample)
    dark, bright = shares[:, _DARK] >= _ALL, 1 - shares[:, _BRIGHT - 1] >= _ALL
    for index in np.flatnonzero(dark | bright):
        if _shows(sample.grey[index]):
            dark[index] = bright[index] = False
    spread = (shares < 0.95).sum(axis=1) - (shares < 0.05).sum(axis=1)
    levels = np.arange(256)
    return {
        "black_share": float(dark.mean()),
        "white_share": float(bright.mean()),
        "luminance": float((np.diff(shares, axis=1, prepend=0) @ levels).mean()),
        "contrast": float(np.median(spread)),
        "crushed_share": float(shares[:, _CRUSHED].mean()),
        "clipped_share": float(1 - shares[:, _CLIPPED - 1].mean()),
        "colourfulness": float(np.median([_colourfulness(picture) for picture in sample.pictures])),
    }


def _shows(grey: Floats) -> bool:
    """Return True when something stands out from the ground of a uniform picture [h, w]."""
    return bool((np.abs(grey - np.median(grey)) > STANDS_OUT).mean() >= SUBJECT)


def _cumulative(sample: ClipSample) -> NDArray[np.float64]:
    """Return the share of each picture's pixels with luminance <= 0, 1, ... 255; [n, 256]."""
    grey = (sample.grey[:, ::_STEP, ::_STEP] + np.float32(0.5)).astype(np.uint8).reshape(len(sample.grey), -1)
    counts = np.array([np.bincount(picture, minlength=256) for picture in grey])
    return np.asarray(counts.cumsum(axis=1) / grey.shape[1], np.float64)


def _colourfulness(picture: NDArray[np.uint8]) -> float:
    red, green, blue = picture[:: 2 * _STEP, :: 2 * _STEP].astype(np.float32).transpose(2, 0, 1)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    return float(spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean()))
