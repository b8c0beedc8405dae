"""Letterbox, pillarbox and other uniform borders, and the picture inside them."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.sample import ClipSample
from reelweave.loader.base.operations import charged

_TOLERANCE = 14  # noise of a uniform border, levels per channel
_PURE, _MOSTLY, _INSIDE = (
    0.98,
    0.5,
    0.4,
)  # shares of a line in the border's colour: at the seam, in the bar, inside
_EVERY = 3  # sampling step along a line, pixels
_MIN_LINES = 2  # minimum height of a bar: a single dark line is the edge of a film or of a scaler
_FADED = 0.2  # share of the step at a seam that may precede it; more is a gradient
# Minimum share of a side inside the bars; a smaller picture is a black one with a spot.
_MIN_INNER = 0.25


@dataclass(frozen=True)
class Bars:
    """Width of the border on each side of a picture, pixels."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0


@charged("scores: bars")
def find_bars(pictures: NDArray[np.uint8]) -> Bars:
    """Find uniform borders of one colour that stay for the whole time and end in a straight seam.

    A line belongs to the border while at least half of it has the border's colour in all pictures. So
    subtitles inside a bar do not end it. At the seam almost all of the last line has the colour and most of
    the next but one has not. A night sky fades into the picture: it has no seam, or is no longer black before
    it.

    Args:
        pictures: uint8 [n, h, w, 3].
    """
    low, high = pictures.min(axis=0), pictures.max(axis=0)
    across = [_depth(low[::way, ::_EVERY], high[::way, ::_EVERY]) for way in (1, -1)]
    low, high = low.transpose(1, 0, 2), high.transpose(1, 0, 2)
    down = [_depth(low[::way, ::_EVERY], high[::way, ::_EVERY]) for way in (1, -1)]
    height, width = pictures.shape[1:3]
    if sum(across) > (1 - _MIN_INNER) * height or sum(down) > (1 - _MIN_INNER) * width:
        return Bars()
    return Bars(*across, *down)


def bars_scores(sample: ClipSample, bars: Bars) -> dict[str, float]:
    """Return ``bar_top_px`` and so on, the border's width in pixels of the clip, and ``bars_share`` of its area.

    The precision is one pixel of the sample: at a width of 1920 and 256 sampled, 7.5 pixels.
    """
    height, width = sample.pictures.shape[1:3]
    inner = (height - bars.top - bars.bottom) * (width - bars.left - bars.right)
    down, across = sample.height / height, sample.width / width
    return {
        "bar_top_px": bars.top * down,
        "bar_bottom_px": bars.bottom * down,
        "bar_left_px": bars.left * across,
        "bar_right_px": bars.right * across,
        "bars_share": 1 - inner / (height * width),
    }


def without_bars(sample: ClipSample, bars: Bars) -> ClipSample:
    """Return the sample with its pictures cropped to the inside of the bars, and its brightness that inside.

    One more line goes with each bar, because its seam is smeared. Motion is measured inside the bars already.
    """
    if bars == Bars():
        return sample
    top, bottom, left, right = (
        line + 1 if line else 0 for line in (bars.top, bars.bottom, bars.left, bars.right)
    )
    height, width = sample.pictures.shape[1:3]
    inner = replace(sample, pictures=sample.pictures[:, top : height - bottom, left : width - right])
    # Bars do not change, so they only add a constant to the mean over a frame, and dilute its changes.
    share = (height - bars.top - bars.bottom) * (width - bars.left - bars.right) / (height * width)
    outer = np.float32(sample.grey.mean() - share * inner.grey.mean())
    return replace(inner, luma=(sample.luma - outer) / np.float32(share))


def _depth(darkest: NDArray[np.uint8], largest: NDArray[np.uint8]) -> int:
    """Return the number of border lines at the top, from the minima and maxima over time, [h, w, 3]."""
    low, high = darkest.astype(np.int16), largest.astype(np.int16)
    colour = np.median((low[0] + high[0]) // 2, axis=0).astype(np.int16)
    even = (np.abs(low - colour) <= _TOLERANCE) & (np.abs(high - colour) <= _TOLERANCE)
    shares = even.all(axis=2).mean(axis=1)
    if shares[0] < _PURE:
        return 0
    depth = int(np.argmax(shares < _MOSTLY)) if (shares < _MOSTLY).any() else len(shares)
    # Scaling smears the seam over a line, which may look like either side.
    while depth > 1 and shares[depth - 1] < _PURE - 0.08:
        depth -= 1
    inside = shares[depth + 1 : depth + 3]
    if depth < _MIN_LINES or not len(inside) or inside.min() > _INSIDE:
        return 0
    step = np.median(np.abs((low + high) // 2 - colour), axis=1).max(axis=1)
    return depth if step[depth - 2] <= _FADED * step[depth + 1 : depth + 3].max() else 0
