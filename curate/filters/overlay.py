"""Scores of burnt-in text and marks, found as edges that stay in place while the picture moves.

Text is found by the strokes of its letters. In a line of text, bright and dark edges alternate many times
within a few pixels. They form a band that ends sharply above and below and stays in place for a second or
two. Leaves and bricks of a fixed camera stay too, but in no such band; everything under a moving camera
changes.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.sample import ClipSample, Floats
from reelweave.loader.base.operations import charged

_EDGE = 24  # minimum step between neighbouring pixels, grey levels
_STAYS_S = 1.5  # minimum duration of readable text
_WIDTH = 32  # window width within a band, pixels: about six letters
_HEIGHTS = (6, 12, 20)  # band heights, pixels: a line of subtitles, two lines, a title
_GAP, _MARGIN = (
    2,
    4,
)  # rows ignored above and below a band, and rows in which strokes count against it, pixels
_AGAINST = 2.0
_TEXT = 0.16
_LARGE_WEIGHT = 0.8  # weight of responses at half size, where bushes begin to resemble letters

_MARK_EDGE = 20
_MARK_TILE = 8
_MARK_SHARE = 0.06  # minimum share of a tile covered by edges
_MAX_STILL = 0.2  # share of lasting edges above which the camera is still and marks cannot be distinguished

Edges = NDArray[np.int16]


@charged("scores: overlays")
def overlay_scores(sample: ClipSample) -> dict[str, float]:
    """Return the scores of overlays, from pictures without bars.

    ``text_peak`` is the response of the most text-like place, 0 to about 0.6: strokes per pixel of its rows,
    minus twice those next to it. ``text_share`` is the share of the picture in places above 0.16.
    ``overlay_share`` is the share of the picture in tiles whose edges stay for the whole clip while the
    camera moves. It is 0 where the camera is still or the footage has hardly any edges.
    """
    grey = sample.grey.astype(np.int16)
    seconds = float(sample.times_s[-1] - sample.times_s[0])
    pictures_per_s = (len(grey) - 1) / seconds if seconds > 0 else 1.0
    window = min(len(grey), max(2, round(_STAYS_S * pictures_per_s)))
    peak, covered = _text(grey, window)
    large_peak, large_covered = _text(_half(grey), window, _TEXT / _LARGE_WEIGHT)
    large_covered = large_covered.repeat(2, axis=0).repeat(2, axis=1)
    covered[: large_covered.shape[0], : large_covered.shape[1]] |= large_covered
    return {
        "text_peak": max(peak, _LARGE_WEIGHT * large_peak),
        "text_share": float(covered.mean()),
        "overlay_share": _marks(grey),
    }


def lasting_edges(grey: Edges, window: int) -> tuple[Edges, Edges]:
    """Return rising and falling horizontal steps that last for ``window`` consecutive pictures, [h, w - 1] each, >= 0.

    Args:
        grey: Luminance, [n, h, w], n >= window.
        window: Number of pictures.
    """
    steps = grey[:, :, 1:] - grey[:, :, :-1]
    rising = _lasting(steps, window, np.minimum).max(axis=0)
    falling = _lasting(steps, window, np.maximum).min(axis=0)
    return np.maximum(rising, 0), np.maximum(-falling, 0)


def _lasting(steps: Edges, window: int, extreme: np.ufunc) -> Edges:
    """Return the extreme over each window of pictures, by doubling."""
    done = 1
    while done < window:
        more = min(done, window - done)
        steps = extreme(steps[:-more], steps[more:])
        done += more
    return steps


def _half(grey: Edges) -> Edges:
    height, width = grey.shape[1] // 2 * 2, grey.shape[2] // 2 * 2
    rows = grey[:, 0:height:2, :width] + grey[:, 1:height:2, :width]
    return (rows[:, :, ::2] + rows[:, :, 1::2]) >> 2


def _text(grey: Edges, window: int, threshold: float = _TEXT) -> tuple[float, NDArray[np.bool_]]:
    """Return the strongest response, and a mask [h, w] of the bands with a response above the threshold."""
    height, width = grey.shape[1:]
    peak, covered = 0.0, np.zeros((height, width), np.bool_)
    for band, response in _responses(*lasting_edges(grey, window)):
        peak = max(peak, float(response.max()))
        for top, left in np.argwhere(response >= threshold):
            covered[top : top + band, left : left + _WIDTH] = True
    return peak, covered


def _responses(rising: Edges, falling: Edges) -> Iterator[tuple[int, Floats]]:
    """Yield band heights, each with the text response of all bands of that height, [tops, lefts]."""
    height, width = rising.shape
    pad = _GAP + _MARGIN
    sums = []
    for edges in (rising, falling):
        strokes = edges >= _EDGE
        strokes[:, 1:] &= ~strokes[
            :, :-1
        ].copy()  # one stroke per row and edge, whatever the width of the edge
        padded = np.pad(strokes, ((pad, pad), (0, 0))).astype(np.int32)
        sums.append(np.pad(padded.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0))))
    bands = [band for band in _HEIGHTS if band <= height and width >= _WIDTH]
    beside = _density(sums, _MARGIN) if bands else np.zeros((0, 0), np.float32)
    for band in bands:
        tops = height - band + 1
        above, below = beside[:tops], beside[pad + band + _GAP :][:tops]
        response = _density(sums, band)[pad:][:tops] - np.float32(_AGAINST) * np.maximum(above, below)
        yield band, response.astype(np.float32)


def _density(sums: list[NDArray[np.int32]], band: int) -> Floats:
    """Return strokes per pixel in every box of ``band`` rows, for the rarer kind of edge."""
    counts = [
        total[band:, _WIDTH:] - total[:-band, _WIDTH:] - total[band:, :-_WIDTH] + total[:-band, :-_WIDTH]
        for total in sums
    ]
    return np.asarray(np.minimum(*counts) / np.float32(band * _WIDTH), np.float32)


def _marks(grey: Edges) -> float:
    if len(grey) < 2 or min(grey.shape[1:]) <= _MARK_TILE:
        return 0.0
    right = grey[:, :-1, 1:] - grey[:, :-1, :-1]
    down = grey[:, 1:, :-1] - grey[:, :-1, :-1]
    still = np.maximum.reduce([right.min(axis=0), -right.max(axis=0), down.min(axis=0), -down.max(axis=0)])
    lasting = _edge_mask(still).mean()
    usual = np.median(
        [_edge_mask(np.maximum(np.abs(right[at]), np.abs(down[at]))).mean() for at in (0, len(grey) // 2, -1)]
    )
    return float(lasting) if lasting <= _MAX_STILL * usual else 0.0


def _edge_mask(edges: Edges) -> NDArray[np.bool_]:
    """Return a mask of the tiles that hold edges, [rows, columns]."""
    rows, columns = (size // _MARK_TILE for size in edges.shape)
    tileable = (edges >= _MARK_EDGE)[: rows * _MARK_TILE, : columns * _MARK_TILE]
    tiles = tileable.reshape(rows, _MARK_TILE, columns, _MARK_TILE).sum(axis=(1, 3))
    return np.asarray(tiles >= _MARK_SHARE * _MARK_TILE**2, np.bool_)
