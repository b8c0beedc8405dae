"""Motion of a frame from the vectors its codec was encoded with; they cost next to nothing."""

from dataclasses import dataclass

import numpy as np
from av.sidedata.sidedata import Type
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from curate.filters.sample import Floats

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
"""Names of FFmpeg's decoders that give their vectors away; those of HEVC, VP8, VP9 and AV1 do not."""

_EVERY_S = 0.2  # of the P pictures, one in this time is measured
_FITTED = 384  # blocks at most that the camera's motion is fitted to

_MIN_COVERED = 0.1  # share of the picture that vectors must cover; the rest is coded without reference
_FITS = 3


@dataclass(frozen=True)
class Motion:
    """Motion of the frames of a span; attributes as of `curate.filters.sample.ClipSample`."""

    motion: Floats | None
    motion_local: Floats | None
    vectors_missing: bool


class MotionMeter:
    """Measures the motion of one span after the other while its frames are decoded.

    Only P pictures count: they refer to the last I or P picture before them, so that the distance in frames is
    known. B pictures refer to both sides at distances the decoder does not tell; they carry no number, and neither
    do P pictures within a fifth of a second of one that does.

    Args:
        codec: name of the decoder.
    """

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._values: list[tuple[float, float]] = []
        self._due_s = 0.0
        self._reference = False
        self._since_reference = 1
        self._predicted = 0

    def push(self, frame: VideoFrame, since_s: float) -> None:
        """Takes the next frame of the span, from a decoder that exports motion vectors.

        Args:
            frame: as decoded; of codecs without vectors it may be any.
            since_s: when it is shown, seconds after the span's start.
        """
        if self._codec not in VECTOR_CODECS:
            return
        kind, found = frame.pict_type, None
        if kind == PictureType.B:
            self._since_reference += 1
        else:
            if kind == PictureType.P:
                self._predicted += 1
                if self._reference and since_s >= self._due_s:
                    found = _motion(frame, self._since_reference)
                    self._due_s = since_s + _EVERY_S if found else self._due_s
            self._reference, self._since_reference = True, 1
        self._values.append(found or (np.nan, np.nan))

    def take(self) -> Motion:
        """What was measured; the next span begins afresh."""
        values = np.array(self._values, np.float32).reshape(-1, 2)
        known = bool(np.isfinite(values).any())
        # One P picture may well be coded without any reference, or follow a reference outside the span.
        missing = self._predicted > 2 and not known
        self._begin()
        if not known:
            return Motion(None, None, missing)
        return Motion(values[:, 0].copy(), values[:, 1].copy(), vectors_missing=False)

    def _begin(self) -> None:
        self._values.clear()
        self._due_s = 0.0
        self._reference = False
        self._since_reference = 1
        self._predicted = 0


def frame_motion(frame: VideoFrame, distance: int = 1) -> float | None:
    """Mean displacement of the picture's area since its reference, in picture diagonals per frame.

    Args:
        frame: from a decoder that exports motion vectors.
        distance: frames between it and the picture it refers to.

    Returns:
        None when the frame carries no vectors into the past, or too few.
    """
    found = _motion(frame, distance)
    return None if found is None else found[0]


def _motion(frame: VideoFrame, distance: int) -> tuple[float, float] | None:
    try:
        beside = frame.side_data
    except ValueError:  # side data of a kind that PyAV has no name for, beside which it shows none
        return None
    if Type.MOTION_VECTORS not in beside:
        return None
    vectors = beside[Type.MOTION_VECTORS]
    found = vector_motion(vectors.to_ndarray(), frame.width, frame.height)
    return None if found is None else (found[0] / distance, found[1] / distance)


def vector_motion(vectors: NDArray[np.void], width: int, height: int) -> tuple[float, float] | None:
    """Motion in one picture: of everything, and of what does not move with the camera.

    Vectors into the past count, each by the area of its block: an encoder puts many small blocks on an edge
    and one large one on a wall.

    Args:
        vectors: records [blocks] with the fields of FFmpeg's ``AVMotionVector``.
        width: of the coded picture, pixels.
        height: of the coded picture, pixels.

    Returns:
        Area means of the vectors' lengths and of their distances from the camera's motion, in picture diagonals;
        None when the vectors cover less than a tenth of the picture.
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
    places = np.stack([past["dst_x"] / width - 0.5, past["dst_y"] / height - 0.5], axis=1)
    rest = moved - camera_motion(places, moved, share)
    return everything / diagonal, float(share @ np.hypot(rest[:, 0], rest[:, 1])) / diagonal


def camera_motion(
    places: NDArray[np.float64], moved: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The motion of the camera at each block: an affine field (pan, zoom, turn) that most of the area follows.

    Least squares, reweighted by Cauchy's function, so that what moves on its own loses its say.

    Args:
        places: of the blocks, [n, 2].
        moved: their displacements, [n, 2], pixels.
        share: of the area, [n], positive, adding up to 1.

    Returns:
        Displacements, [n, 2], pixels.
    """
    basis = np.column_stack([np.ones(len(places)), places])
    if len(places) > _FITTED:
        some = np.linspace(0, len(places) - 1, _FITTED).astype(np.intp)
        return np.asarray(basis @ _fit(basis[some], moved[some], share[some] / share[some].sum()))
    return np.asarray(basis @ _fit(basis, moved, share))


def _fit(
    basis: NDArray[np.float64], moved: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Coefficients [3, 2] of the affine field."""
    # A little ridge: a handful of blocks in a row must not give a wild slope.
    ridge = np.diag([1e-9, 1e-3, 1e-3])
    order = np.argsort(moved, axis=0)
    middle = (np.cumsum(share[order], axis=0) < 0.5).sum(axis=0).clip(0, len(moved) - 1)
    found = np.zeros((3, 2))
    found[0] = [moved[order[middle[axis], axis], axis] for axis in (0, 1)]
    for _ in range(_FITS):
        error = np.hypot(*(moved - basis @ found).T)
        spread = max(0.5, float(share @ error))
        weighted = basis * (share / (1 + (error / spread) ** 2))[:, None]
        found = np.linalg.solve(weighted.T @ basis + ridge, weighted.T @ moved)
    return found
