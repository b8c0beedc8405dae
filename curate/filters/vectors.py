"""Motion of a frame from the codec's motion vectors, at almost no cost."""

from dataclasses import dataclass

import numpy as np
from av.sidedata.sidedata import Type
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from reelweave.curate.filters.bars import Bars, find_bars
from reelweave.curate.filters.sample import Floats
from reelweave.loader.base.operations import charged

VECTOR_CODECS = frozenset(
    {
        "h264",
        "mpeg1video",
        "mpeg2video",
        "mpeg4",
        "h263",
        "flv",
        "msmpeg4v1",
        "msmpeg4v2",
        "msmpeg4",
        "wmv1",
        "wmv2",
    }
)
"""Decoders of FFmpeg that export motion vectors; those of HEVC, VP8, VP9 and AV1 do not."""

_EVERY_S = 0.2  # interval between measured P pictures
_FITTED = 384  # maximum number of blocks in the fit of the camera's motion

_BARS_PX = 256  # maximum long side of the pictures in which bars are looked for
_EDGE_NOISE = 32  # levels by which no line of a bar changes

_MIN_COVERED = 0.1  # minimum share of the picture covered by vectors; the rest is intra-coded
_FITS = 3


@dataclass(frozen=True)
class SpanMotion:
    """Motion of the frames of a span, with the attributes of `reelweave.curate.filters.sample.ClipSample`."""

    motion: Floats | None
    motion_local: Floats | None
    vectors_missing: bool


class MotionMeter:
    """Motion measurement of one span after the other while its frames are decoded.

    Only P pictures count: they refer to the last I or P picture before them, so that the distance in frames
    is known. B pictures refer to both sides at distances that the decoder does not export. They have no
    number, and neither have P pictures within a fifth of a second of a measured one.

    Args:
        codec: Name of the decoder in FFmpeg.
    """

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._values: list[tuple[float, float]] = []
        self._inner: list[tuple[float, float]] = []
        self._range: NDArray[np.uint8] | None = None
        self._num_measured = 0
        self._latest_bars = Bars()
        self._due_s = 0.0
        self._reference = False
        self._since_reference = 1
        self._predicted = 0

    @charged("scores: motion")
    def push(self, frame: VideoFrame, since_s: float) -> None:
        """Process the next frame of the span, from a decoder that exports motion vectors.

        Args:
            frame: Decoded frame; ignored for codecs without vectors.
            since_s: Display time, seconds after the span's start.
        """
        if self._codec not in VECTOR_CODECS:
            return
        kind, motion, inner = frame.pict_type, None, None
        if kind == PictureType.B:
            self._since_reference += 1
        else:
            if kind == PictureType.P:
                self._predicted += 1
                if self._reference and since_s >= self._due_s:
                    motion = _motion(frame, self._since_reference)
                    if motion is not None:
                        self._due_s = since_s + _EVERY_S
                        bars = self._bars(frame)
                        inner = _motion(frame, self._since_reference, bars) if bars != Bars() else None
            self._reference, self._since_reference = True, 1
        self._values.append(motion or (np.nan, np.nan))
        self._inner.append(inner or self._values[-1])

    def _bars(self, frame: VideoFrame) -> Bars:
        """Return the bars of the measured frames so far, in pixels of the coded picture."""
        grey = _small_luma(frame)
        if grey is None:
            return Bars()
        if self._range is None or self._range.shape[1:] != grey.shape:
            self._range, self._num_measured = np.stack([grey, grey]), 0
        else:
            np.minimum(self._range[0], grey, out=self._range[0])
            np.maximum(self._range[1], grey, out=self._range[1])
        # Bars stay, so they are looked for at the first picture, the second, the fourth, the eighth and so on.
        self._num_measured += 1
        if self._num_measured & (self._num_measured - 1) == 0:
            bars, step = _bars_of(self._range), _luma_step(frame)
            # The blocks at the seam hold both sides of it.
            self._latest_bars = Bars(
                *(step * (line + 1 if line else 0) for line in (bars.top, bars.bottom, bars.left, bars.right))
            )
        return self._latest_bars

    def take(self) -> SpanMotion:
        """Return the measurements inside the bars, and reset for the next span."""
        # What looked like bars at first, and moved later, was part of the picture.
        lasting = self._range is not None and _bars_of(self._range) != Bars()
        values = np.array(self._inner if lasting else self._values, np.float32).reshape(-1, 2)
        has_motion = bool(np.isfinite(values).any())
        # One P picture may be coded without any reference, or follow a reference outside the span.
        missing = self._predicted > 2 and not has_motion
        self._begin()
        if not has_motion:
            return SpanMotion(None, None, missing)
        return SpanMotion(values[:, 0].copy(), values[:, 1].copy(), vectors_missing=False)

    def _begin(self) -> None:
        self._values.clear()
        self._inner.clear()
        self._range, self._num_measured, self._latest_bars = None, 0, Bars()
        self._due_s = 0.0
        self._reference = False
        self._since_reference = 1
        self._predicted = 0


def frame_motion(frame: VideoFrame, distance: int = 1) -> float | None:
    """Return the mean displacement of the picture's area since its reference, in picture diagonals per frame.

    Args:
        frame: Frame from a decoder that exports motion vectors.
        distance: Frames between the picture and its reference.

    Returns:
        None when the frame has no vectors into the past, or too few.
    """
    motion = _motion(frame, distance)
    return None if motion is None else motion[0]


def _bars_of(extremes: NDArray[np.uint8]) -> Bars:
    """Return the bars of pictures from the minimum and maximum of each pixel over time, uint8 [2, h, w]."""
    low, high = extremes
    edges = ((low[0], high[0]), (low[-1], high[-1]), (low[:, 0], high[:, 0]), (low[:, -1], high[:, -1]))
    # Most films have no bars, and their edges tell it fast.
    if all(np.percentile(most.astype(np.int16) - least, 95) > _EDGE_NOISE for least, most in edges):
        return Bars()
    return find_bars(extremes[..., None].repeat(3, axis=3))


def _luma_step(frame: VideoFrame) -> int:
    return max(1, -(-max(frame.width, frame.height) // _BARS_PX))


def _small_luma(frame: VideoFrame) -> NDArray[np.uint8] | None:
    """Return every few pixels of the brightness, uint8 [h, w]; None for formats without a plane of it."""
    plane, bits = frame.planes[0], frame.format.components[0].bits
    if frame.format.is_rgb or len(frame.planes) < 2 or frame.format.is_big_endian:
        return None
    step, data = _luma_step(frame), memoryview(plane)
    if bits > 8:
        words = np.frombuffer(data, np.uint16).reshape(plane.height, -1)[::step, : frame.width : step]
        return (words >> np.uint16(bits - 8)).astype(np.uint8)
    return np.frombuffer(data, np.uint8).reshape(plane.height, -1)[::step, : frame.width : step].copy()


def _motion(
    frame: VideoFrame,
    distance: int,
    bars: Bars = Bars(),  # noqa: B008
) -> tuple[float, float] | None:
    try:
        beside = frame.side_data
    except ValueError:  # PyAV fails on frames with side data of an unknown kind
        return None
    if Type.MOTION_VECTORS not in beside:
        return None
    vectors = beside[Type.MOTION_VECTORS]
    blocks, width, height = vectors.to_ndarray(), frame.width, frame.height
    if bars != Bars():
        blocks = blocks[_inside(blocks, bars, width, height)]
        blocks["dst_x"] -= bars.left
        blocks["dst_y"] -= bars.top
        width, height = width - bars.left - bars.right, height - bars.top - bars.bottom
    motion = vector_motion(blocks, width, height)
    return None if motion is None else (motion[0] / distance, motion[1] / distance)


def _inside(vectors: NDArray[np.void], bars: Bars, width: int, height: int) -> NDArray[np.bool_]:
    """Return which blocks have their centre inside the bars."""
    x, y = vectors["dst_x"], vectors["dst_y"]
    inside = (x >= bars.left) & (x < width - bars.right) & (y >= bars.top) & (y < height - bars.bottom)
    return np.asarray(inside, np.bool_)


def vector_motion(vectors: NDArray[np.void], width: int, height: int) -> tuple[float, float] | None:
    """Return the motion in one picture, and the motion relative to the camera.

    Vectors into the past count, each by the area of its block. An encoder uses many small blocks on an edge
    and one large block on a wall.

    Args:
        vectors: Records [blocks] with the fields of FFmpeg's ``AVMotionVector``.
        width: Width of the coded picture, pixels.
        height: Height of the coded picture, pixels.

    Returns:
        Area means of the vectors' lengths and of their distances from the camera's motion, in picture
        diagonals; None when the vectors cover less than a tenth of the picture.
    """
    past = vectors if (vectors["source"] < 0).all() else vectors[vectors["source"] < 0]
    area = past["w"].astype(np.float64) * past["h"]
    if not len(past) or area.sum() < _MIN_COVERED * width * height:
        return None
    scale = past["motion_scale"].astype(np.float64)
    moved = np.stack([past["motion_x"] / scale, past["motion_y"] / scale], axis=1)
    moved[~np.isfinite(moved)] = 0
    share = area / area.sum()
    diagonal = float(np.hypot(width, height))
    everything = float(share @ np.hypot(moved[:, 0], moved[:, 1]))
    if not everything:
        return 0.0, 0.0
    positions = np.stack([past["dst_x"] / width - 0.5, past["dst_y"] / height - 0.5], axis=1)
    rest = moved - camera_motion(positions, moved, share)
    return everything / diagonal, float(share @ np.hypot(rest[:, 0], rest[:, 1])) / diagonal


def camera_motion(
    positions: NDArray[np.float64], moved: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fit the motion of the camera at each block: an affine field (pan, zoom, turn) that most of the area follows.

    The fit is least squares, reweighted by Cauchy's function, which reduces the weight of independently
    moving things.

    Args:
        positions: Centres of the blocks, [n, 2].
        moved: Displacements of the blocks, [n, 2], pixels.
        share: Areas of the blocks, [n], positive, with sum 1.

    Returns:
        Displacements, [n, 2], pixels.
    """
    return np.asarray(_basis(positions) @ camera_field(positions, moved, share))


def camera_field(
    positions: NDArray[np.float64], moved: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the coefficients [3, 2] of that field: displacement at the origin, and its change along x and y."""
    if len(positions) > _FITTED:
        some = np.linspace(0, len(positions) - 1, _FITTED).astype(np.intp)
        positions, moved, share = positions[some], moved[some], share[some] / share[some].sum()
    return _fit(_basis(positions), moved, share)


def _basis(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.column_stack([np.ones(len(positions)), positions])


def _fit(
    basis: NDArray[np.float64], moved: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the coefficients [3, 2] of the affine field."""
    # Slight ridge regularization: a few blocks in a row must not give an extreme slope.
    ridge = np.diag([1e-9, 1e-3, 1e-3])
    order = np.argsort(moved, axis=0)
    middle = (np.cumsum(share[order], axis=0) < 0.5).sum(axis=0).clip(0, len(moved) - 1)
    field = np.zeros((3, 2))
    field[0] = [moved[order[middle[axis], axis], axis] for axis in (0, 1)]
    for _ in range(_FITS):
        error = np.hypot(*(moved - basis @ field).T)
        spread = max(0.5, float(share @ error))
        weighted = basis * (share / (1 + (error / spread) ** 2))[:, None]
        field = np.linalg.solve(weighted.T @ basis + ridge, weighted.T @ moved)
    return field
