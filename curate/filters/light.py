"""Black and white pictures, exposure, contrast and colour."""

import numpy as np
from numpy.typing import NDArray

from curate.filters.sample import ClipSample, Floats

_DARK, _BRIGHT = 25, 230
_ALL = 0.98
"""A picture can be black when 98 percent of it are darker than a tenth of the range: FFmpeg's ``blackdetect``."""

STANDS_OUT, SUBJECT = 30.0, 5e-4
"""Grey levels, and the share of a picture that differs by so much where there is something to see.

Stars, a moon, lit windows, a dancer on a dark stage and lines on white paper cover 0.1 to 1 percent; noise, dust on
black leader and what codecs do to an even picture cover 0.02 or less.
"""

_CRUSHED, _CLIPPED = 4, 251  # codecs and scaling move full black and white by a few levels
_STEP = 2  # every second row and column tells as much of a histogram


def light_scores(sample: ClipSample) -> dict[str, float]:
    """Scores of light and colour, from pictures without bars.

    ``black_share`` and ``white_share`` of the pictures, which are dark or bright and show nothing; ``luminance``,
    its mean, and ``contrast``, its 95th less its 5th percentile in the median picture, both 0 to 255;
    ``crushed_share`` and ``clipped_share`` of the pixels that are fully black or white; ``colourfulness`` of the
    median picture (Hasler and Suesstrunk 2003).
    """
    shares = _cumulative(sample)
    dark, bright = shares[:, _DARK] >= _ALL, 1 - shares[:, _BRIGHT - 1] >= _ALL
    for number in np.flatnonzero(dark | bright):
        if _shows(sample.grey[number]):
            dark[number] = bright[number] = False
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
    """Whether something stands out from the ground of an even picture [h, w]."""
    return bool((np.abs(grey - np.median(grey)) > STANDS_OUT).mean() >= SUBJECT)


def _cumulative(sample: ClipSample) -> NDArray[np.float64]:
    """Share of each picture's pixels whose luminance is at most 0, 1, ... 255; [n, 256]."""
    grey = (sample.grey[:, ::_STEP, ::_STEP] + np.float32(0.5)).astype(np.uint8).reshape(len(sample.grey), -1)
    counts = np.array([np.bincount(picture, minlength=256) for picture in grey])
    return np.asarray(counts.cumsum(axis=1) / grey.shape[1], np.float64)


def _colourfulness(picture: NDArray[np.uint8]) -> float:
    red, green, blue = picture[:: 2 * _STEP, :: 2 * _STEP].astype(np.float32).transpose(2, 0, 1)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    return float(spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean()))
