"""Samples of a clip for filters and fingerprints: a few small pictures, and some numbers of every frame.

They are collected while the clip is cut, from the pictures that go to the encoder, so that nothing is decoded
for them.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from reelweave.curate.cut import CutClip
from reelweave.curate.cut.crop import Crop
from reelweave.curate.dedup.fingerprint import PICTURES_PER_S, PrintPictures, print_picture
from reelweave.curate.filters import (
    Bars,
    ClipSample,
    MotionMeter,
    ScoreConfig,
    SpanMotion,
    text_reader,
    without_bars,
)
from reelweave.curate.filters.ocr import READ_LONG_SIDE_PX, READ_PER_S, TextMeter
from reelweave.curate.filters.sample import ReadText
from reelweave.curate.filters.still_edges import (
    LOOK_LONG_SIDE_PX,
    LOOK_PER_S,
    EdgeMeter,
    StillEdges,
)
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.colour.sdr import SdrConverter

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_AT_ONCE = 16  # pictures


class FrameStats:
    """Mean luminance of every frame of a source and its step to the next, from the pictures of the scan.

    Eight bytes per frame. Pictures are measured a few at a time, which takes a third of the time of one by one.
    """

    def __init__(self) -> None:
        self._luma: list[float] = []
        self._steps: list[float] = []
        self._last: NDArray[np.float32] | None = None
        self._waiting: list[NDArray[np.uint8]] = []

    @property
    def values(self) -> tuple[list[float], list[float]]:
        """Luminance and step of every frame so far."""
        self._measure()
        return self._luma, self._steps

    @classmethod
    def of_values(cls, luma: list[float], steps: list[float]) -> Self:
        """Return the statistics of a source whose `values` are known."""
        stats = cls()
        stats._luma, stats._steps = luma, steps
        return stats

    @charged("scores: pictures")
    def push(self, picture: NDArray[np.uint8]) -> None:
        """Take the next shown frame, uint8 [36, 64, 3] RGB; the picture is kept for a while."""
        self._waiting.append(picture)
        if len(self._waiting) == _AT_ONCE:
            self._measure()

    def _measure(self) -> None:
        if not self._waiting:
            return
        luma: NDArray[np.float32] = np.stack(self._waiting).astype(np.float32) @ _LUMA
        before = luma[:1] if self._last is None else self._last[None]
        moved = np.abs(luma - np.concatenate([before, luma[:-1]]))
        for series, values in ((self._luma, luma), (self._steps, moved)):
            series += values.reshape(len(luma), -1).mean(axis=1).tolist()
        self._last = luma[-1]
        self._waiting.clear()

    def of(self, shown: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (luma [frames], steps [frames]) of a clip; the first step is 0.

        Args:
            shown: Source frame of each of the clip's frames, not falling. A repeated frame makes no step; over
                frames that are left out the largest step counts.
        """
        self._measure()
        first = int(shown[0])
        source = np.array(self._steps[first : int(shown[-1]) + 1], np.float32)
        source[0] = 0
        ends = np.unique(shown) - first
        largest = (
            np.maximum.reduceat(source, np.concatenate([[0], ends[:-1] + 1])) if len(ends) > 1 else source[:1]
        )
        steps = np.zeros(len(shown), np.float32)
        steps[np.searchsorted(shown - first, ends)] = largest
        luma = np.array(self._luma[first : int(shown[-1]) + 1], np.float32)
        return luma[shown - first], steps


@dataclass(frozen=True, eq=False)
class ClipPictures:
    """Small pictures, times and motion of a clip; arrays as in `reelweave.curate.filters.ClipSample`.

    Attributes:
        fingerprint: Pictures that deduplication compares; see `reelweave.curate.dedup.fingerprint`.
        text: Text that OCR found, or None without OCR.
        edges: Edges that stay, or None where they were not looked at.
    """

    pictures: NDArray[np.uint8]
    times_s: NDArray[np.float64]
    motion: SpanMotion
    fingerprint: PrintPictures
    text: ReadText | None = None
    edges: StillEdges | None = None

    def sample(
        self, clip: CutClip, stats: FrameStats, shown: NDArray[np.int64], footage_fps: float
    ) -> ClipSample:
        """Return the sample of the clip.

        Args:
            clip: The clip.
            stats: Statistics of the whole source.
            shown: Source frame of each of the clip's frames.
            footage_fps: Frame rate of its footage, which the clip's may be lower than, frames per second.
        """
        luma, steps = stats.of(shown)
        crop = clip.crop or Crop()
        sample = ClipSample(
            pictures=self.pictures,
            times_s=self.times_s,
            luma=luma,
            steps=steps,
            motion=self.motion.motion,
            motion_local=self.motion.motion_local,
            vectors_missing=self.motion.vectors_missing,
            width=clip.geometry.width + crop.left + crop.right,
            height=clip.geometry.height + crop.top + crop.bottom,
            frames=clip.frames,
            fps=footage_fps,
            duration_s=float(clip.frames / clip.rate),
            audio_dbfs=clip.audio_dbfs,
            text=self.text,
            edges=self.edges,
        )
        return sample if clip.crop is None else without_crop(sample, clip.crop, clip.geometry)


def without_crop(sample: ClipSample, crop: Crop, size: Geometry) -> ClipSample:
    """Return the sample of a clip that lost lines of its pictures; motion is measured inside bars already."""
    height, width = sample.pictures.shape[1:3]
    down, across = height / sample.height, width / sample.width
    # Lines that are cut in part go, as those at the seam of a bar do.
    lost = Bars(*(
        max(0, math.ceil(lines) - 1)
        for lines in (crop.top * down, crop.bottom * down, crop.left * across, crop.right * across)
    ))  # fmt: skip
    inner = replace(without_bars(sample, lost), width=size.width, height=size.height)
    left, top = crop.left / sample.width, crop.top / sample.height
    right, bottom = left + size.width / sample.width, top + size.height / sample.height
    return replace(
        inner,
        text=None if sample.text is None else sample.text.inside(left, top, right, bottom),
        edges=None if sample.edges is None else sample.edges.inside((left, right), (top, bottom)),
    )


class PictureCollector:
    """Collector of pictures and motion, one clip after the other.

    Args:
        codec: Name of the source's decoder.
        config: Rate and size of the pictures.
    """

    def __init__(self, codec: str, config: ScoreConfig) -> None:
        self._config = config
        self._scaler, self._text_scaler, self._edge_scaler = (VideoReformatter() for _ in range(3))
        self._sdr = SdrConverter()
        self._motion = MotionMeter(codec)
        self._text = None if config.ocr == "none" else TextMeter(text_reader(config.ocr))
        self._edges = EdgeMeter() if config.graphics else None
        self._pictures: list[NDArray[np.uint8]] = []
        self._times_s: list[float] = []
        self._print: list[PrintPictures] = []

    @charged("scores: pictures")
    def push(self, since_s: float, held_s: float, decoded: VideoFrame, finished: VideoFrame) -> None:
        """Take the next frame of the clip, as decoded and as encoded.

        A frame counts once in every interval of the sample in which it is displayed.

        Args:
            since_s: Display time, seconds after the clip's start.
            held_s: Duration of the display in seconds.
            decoded: The frame from a decoder that exports motion vectors.
            finished: The frame upright, with square pixels.
        """
        self._motion.push(decoded, since_s)
        times_s = _due_times(len(self._times_s), self._config.fps, since_s, held_s)
        prints = len(_due_times(len(self._print), PICTURES_PER_S, since_s, held_s))
        if self._text is not None:
            due = len(_due_times(self._text.pictures, READ_PER_S, since_s, held_s))
            if due:
                self._text.push(self._small(finished, READ_LONG_SIDE_PX, self._text_scaler), due)
        if self._edges is not None:
            due = len(_due_times(self._edges.pictures, LOOK_PER_S, since_s, held_s))
            if due:
                self._edges.push(self._small(finished, LOOK_LONG_SIDE_PX, self._edge_scaler, "gray"), due)
        if not times_s and not prints:
            return
        small = self._small(finished, self._config.long_side_px, self._scaler)
        self._pictures += [small] * len(times_s)
        self._times_s += times_s
        if prints:
            self._print += [print_picture(small)] * prints

    def _small(
        self, finished: VideoFrame, long_side_px: int, scaler: VideoReformatter, layout: str = "rgb24"
    ) -> NDArray[np.uint8]:
        scale = min(1.0, long_side_px / max(finished.width, finished.height))
        small = scaler.reformat(
            self._sdr(finished),
            max(2, round(finished.width * scale)),
            max(2, round(finished.height * scale)),
            layout,
            interpolation="AREA",
            threads=1,
        )
        return np.asarray(small.to_ndarray(), np.uint8)

    def take(self) -> ClipPictures:
        """Return the samples of the clip, and start the next one."""
        collected = ClipPictures(
            np.stack(self._pictures),
            np.array(self._times_s),
            self._motion.take(),
            np.stack(self._print),
            None if self._text is None else self._text.take(),
            None if self._edges is None else self._edges.take(),
        )
        self._pictures, self._times_s, self._print = [], [], []
        return collected

    def drop(self) -> None:
        """Drop the samples of a span that became no clip."""
        self._motion.take()
        if self._text is not None:
            self._text.take()
        if self._edges is not None:
            self._edges.take()
        self._pictures, self._times_s, self._print = [], [], []


def _due_times(taken: int, per_s: float, since_s: float, held_s: float) -> list[float]:
    """Return the times at which a frame counts in a sample of so many pictures a second, of which some are taken."""
    times_s = [since_s] if since_s + 1e-9 >= taken / per_s else []
    # The next frame stands for what falls due before it, unless it comes a whole interval late.
    while (taken + len(times_s) + 1) / per_s <= since_s + held_s + 1e-9:
        times_s.append((taken + len(times_s)) / per_s)
    return times_s
