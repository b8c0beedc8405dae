"""Bars of a source's frames: letterbox, pillarbox and other uniform edges that end in a straight seam.

Frames are measured four times a second, at their full size, while the source is decoded. What a clip loses is decided
from the frames in it alone, so that it does not depend on where other clips begin.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from reelweave.curate.cut.crop.crop import SIDES, Crop
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.tars.orientation import Orientation, orientation_of

_PER_S = 4  # measured frames
_ACROSS = 240  # pixels of a line that are looked at, about
_TOLERANCE = 8  # noise of a uniform bar, grey levels
_PURE, _MOSTLY, _INSIDE = 0.98, 0.5, 0.4  # shares of a line in the bar's colour: edge, bar, picture
_SMEAR = 0.005  # of a side: lines over which coding and scaling smear a seam
_FADED = 0.2  # share of the step at a seam that may precede it; more is a gradient
_LEAST = 0.004  # of a side: a narrower bar is the edge of a film or of a scaler
_SEEN = 0.2  # share of the frames of a clip that show the seam; in the others the picture beside it is dark
_LEAST_INNER = 0.25  # of a side that is left; a smaller picture is a black one with a spot
_BLACK, _NARROW = 32, 0.05  # grey level and share of a side up to which a bar may lie at one side alone
_EVEN_PAIR, _LETTERED_PAIR = 0.5, 0.75  # width of the narrower bar of a pair over the wider one
_CODED, _CODED_LINES = 0.01, 8  # share of a side, and lines, by which coarse coding moves the edge of a bar
_JITTER_LINES = 2.5  # by which it moves its end
_BRIGHT = 64  # grey levels by which letters differ from their bar
_PLAIN, _LETTERED, _PICTURE = 1.0, 0.5, 0.0  # what is in a bar: nothing, letters, more than that

_Luma = NDArray[np.uint8] | NDArray[np.uint16]

_FIELDS = 4  # of a side of a frame: depth, end, level and what is in the bar

_NO_END = 1.0
"""Depth of a bar without an end: the whole picture has its colour."""


@dataclass(frozen=True, eq=False)
class BarNotes:
    """Bars of the measured frames of a source, or of a part of it.

    Attributes:
        frames: int64 [n]: index of each measured frame.
        edges: float32 [n, 4, 4]: depth, end, level and plainness of the bar at each side.
    """

    frames: NDArray[np.int64]
    edges: NDArray[np.float32]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the notes as named arrays."""
        return {"bar_frames": self.frames, "bar_edges": self.edges}

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]]) -> BarNotes | None:
        """Return the notes that `arrays` returned, or None where there are none."""
        return cls(arrays["bar_frames"], arrays["bar_edges"]) if "bar_frames" in arrays else None


class BarMeter:
    """Meter of the bars of a source's frames, in display order.

    Memory is 72 bytes for each of four frames a second.

    Args:
        time_base: Seconds per tick of the frames' stamps.
        fps: Frame rate of the source, for frames without stamps.
    """

    def __init__(self, time_base: Fraction, fps: float) -> None:
        self._time_base, self._fps = float(time_base), fps
        self._frames = 0  # so far
        self._interval: int | None = None  # in which the last frame is shown
        self._turn, self._rotation = Orientation(), 0
        self._indices = array("q")
        self._edges = array("f")  # `_edge` of each side of each measured frame

    @classmethod
    def of_notes(cls, notes: BarNotes) -> Self:
        """Return a meter of a source all of whose frames were measured."""
        meter = cls(Fraction(1), 1.0)
        meter._indices.extend(notes.frames.tolist())
        meter._edges.extend(notes.edges.ravel().tolist())
        return meter

    @charged("bars")
    def push(self, frame: VideoFrame) -> None:
        """Take the next decoded frame."""
        interval = self._interval_of(frame.pts)
        self._frames += 1
        # The first frame of each interval is measured, wherever the first frame of all lies.
        if interval == self._interval:
            return
        self._interval = interval
        if frame.key_frame or frame.rotation != self._rotation:
            self._turn, self._rotation = orientation_of(frame), frame.rotation
        stored, shift = _luma(frame)
        luma = self._turn.of(stored)
        self._indices.append(self._frames - 1)
        for lines in (luma, luma[::-1], luma.T, luma.T[::-1]):
            self._edges.extend(_edge(lines, shift))

    def _interval_of(self, pts: int | None) -> int:
        shown_s = self._frames / self._fps if pts is None else pts * self._time_base
        return math.floor(shown_s * _PER_S)

    def notes(self, frames: int) -> BarNotes:
        """Return what was measured of the first frames, for that of other parts of the source to be joined to."""
        indices = np.array(self._indices, np.int64)
        count = int(np.searchsorted(indices, frames))
        edges = np.array(self._edges, np.float32).reshape(-1, len(SIDES), _FIELDS)
        return BarNotes(indices[:count], edges[:count])

    def join(self, notes: BarNotes, pts: Sequence[int]) -> None:
        """Take the notes of the next part of a source, and the stamps of its frames."""
        skips = len(pts) > 0 and self._interval_of(pts[0]) == self._interval
        self._indices.extend((notes.frames[skips:] + self._frames).tolist())
        self._edges.extend(notes.edges[skips:].ravel().tolist())
        if len(pts):
            self._interval = self._interval_of(pts[-1])
        self._frames += len(pts)

    def crop(self, first: int, last: int, size: Geometry) -> Crop | None:
        """Return what a clip loses, or None for nothing.

        A bar lasts in all frames of the clip. Where only one side has one, it is black and narrow.

        Args:
            first: First frame of the clip.
            last: One past the last frame, of which those that were taken count.
            size: Size of its finished pictures.
        """
        indices = np.frombuffer(self._indices, np.int64)
        begin, end = np.searchsorted(indices, [first, last])
        edges = np.frombuffer(self._edges, np.float32).reshape(-1, len(SIDES), _FIELDS)[begin:end]
        if not len(edges):
            return None
        lines = size.height, size.height, size.width, size.width
        bars = [_bar(edges[:, side], lines[side]) for side in range(len(SIDES))]
        # Letters are written along a bar.
        (top, bottom), (left, right) = _pair(*bars[:2], letters=True), _pair(*bars[2:], letters=False)
        crop = Crop(
            _even(top * size.height), _even(bottom * size.height), _even(left * size.width), _even(right * size.width)
        )  # fmt: skip
        return None if crop == Crop() else crop


def _luma(frame: VideoFrame) -> tuple[_Luma, int]:
    """Return the luminance of a frame, [h, w], as a view where it has a plane of it, and its bits beyond 8."""
    layout, bits = frame.format, frame.format.components[0].bits
    is_plane = bits == 8 or layout.name.startswith("yuv")  # P010 and others store more bits in the upper ones
    if layout.is_rgb or layout.is_big_endian or len(frame.planes) < 2 or not is_plane:
        frame, bits = frame.reformat(format="gray", threads=1), 8
    plane = frame.planes[0]
    rows: Any = np.frombuffer(memoryview(plane), np.uint8 if bits == 8 else np.uint16)
    return rows.reshape(-1, plane.line_size // rows.itemsize)[: frame.height, : frame.width], bits - 8


def _edge(lines: _Luma, shift: int) -> tuple[float, float, float, float]:
    """Return the bar at the first lines of a picture as depth, end, level and plainness.

    Depth is the share of lines that are purely of the bar's colour, 0 for no bar. End is the share before the first
    line that is purely of the picture, 0 without a straight seam. Level is that of the bar, 0 to 255. Plainness is 1
    where nothing is in the bar, 0.5 where what is in it differs as strongly as letters do.

    Args:
        lines: Luminance, [lines, pixels].
        shift: Bits of a pixel beyond 8.
    """
    num_lines, columns = len(lines), slice(None, None, max(1, lines.shape[1] // _ACROSS))
    # Most frames have no bar, and their first line tells it.
    first = (lines[0, columns] >> shift).astype(np.int16)
    level = np.int16(np.median(first))
    if (np.abs(first - level) <= _TOLERANCE).mean() < _PURE:
        return 0.0, 0.0, float(level), _PLAIN
    off = np.abs((lines[:, columns] >> shift).astype(np.int16) - level)
    shares = (off <= _TOLERANCE).mean(axis=1)
    if not (shares < _MOSTLY).any():
        return _NO_END, 0.0, float(level), _PLAIN
    outside = int(np.argmax(shares < _MOSTLY))
    # Letters in a bar do not end it, and a smeared seam looks like either side.
    smear = math.ceil(_SMEAR * num_lines)
    depth = outside
    while depth > outside - smear and shares[depth - 1] < _PURE:
        depth -= 1
    inside = int(np.argmax(shares[outside : outside + smear + 1] <= _INSIDE)) + outside
    behind = slice(inside, inside + 2 * smear + 1)
    steps = np.median(off[max(0, depth - 1) : inside + 2 * smear + 1], axis=1)
    is_straight = (
        shares[behind].max() <= _MOSTLY and steps[0] <= _FADED * steps[inside - max(0, depth - 1) :].max()
    )
    # Coarse coding rings beside the seam.
    plain, bar = _PLAIN, slice(max(depth // 2, depth - max(_CODED_LINES, round(_CODED * num_lines))))
    if shares[bar].min(initial=1.0) < _PURE:
        strange = off[bar][off[bar] > _TOLERANCE]
        plain = _LETTERED if np.median(strange) >= _BRIGHT else _PICTURE
    return depth / num_lines, (inside + 1) / num_lines if is_straight else 0.0, float(level), plain


@dataclass(frozen=True)
class _Bar:
    """Bar at one side of a clip: share of lines that it takes, whether it is black, and what is in it."""

    share: float = 0.0
    is_black: bool = False
    plain: float = _PLAIN


def _bar(edges: NDArray[np.float32], lines: int) -> _Bar:
    """Return the bar at one side of a clip.

    Args:
        edges: Values of `_edge` for the frames of the clip, [n, 4].
        lines: Number of lines from this side to the opposite one.
    """
    depths, ends, levels, plain = edges.T
    depth = depths.min()
    if depth == 0 or depth == _NO_END or plain.min() == _PICTURE:
        return _Bar()
    # Coding moves the depth of a bar more than its end. Where the lowest end lies far behind, some frame has no seam.
    first_end = ends[ends > 0].min(initial=_NO_END)
    seams = (ends > 0) & (ends <= first_end + max(_SMEAR, _JITTER_LINES / lines))
    share = float(ends[seams].max(initial=0))
    is_near = first_end <= depth + max(_CODED, _CODED_LINES / lines)
    if not is_near or seams.sum() < _SEEN * len(edges) or share < _LEAST:
        return _Bar()
    return _Bar(share, bool(np.median(levels[seams]) <= _BLACK), float(plain.min()))


def _pair(bar: _Bar, opposite: _Bar, *, letters: bool) -> tuple[float, float]:
    """Return what two opposite sides lose.

    Args:
        bar: Bar at one side.
        opposite: Bar at the other one.
        letters: True if letters may lie in one bar of a pair of equal ones, whose other one is plain.
    """
    narrow, wide = sorted((bar.share, opposite.share))
    if narrow + wide > 1 - _LEAST_INNER:
        return 0.0, 0.0
    least_plain, most_plain = sorted((bar.plain, opposite.plain))
    min_ratio = _EVEN_PAIR if least_plain == _PLAIN else _LETTERED_PAIR
    may_crop = least_plain == _PLAIN or (letters and most_plain == _PLAIN)
    if narrow > 0:
        return (bar.share, opposite.share) if may_crop and narrow >= min_ratio * wide else (0.0, 0.0)
    first, second = (
        side.share if side.is_black and side.plain == _PLAIN and side.share <= _NARROW else 0.0
        for side in (bar, opposite)
    )
    return first, second


def _even(lines: float) -> int:
    return 2 * math.ceil(lines / 2 - 1e-3)
