"""What filters and fingerprints see of a clip: a few small pictures and some numbers of every frame.

They are collected while the clip is cut, from the pictures that go to the encoder, so that nothing is decoded
for them.
"""

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from curate.cut import Clip
from curate.filters import ClipSample, MotionMeter, ScoreConfig, levels
from curate.spans import Span

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class FrameStats:
    """Mean luminance of every frame of a source and its step to the next, from the pictures of the scan.

    Eight bytes per frame.
    """

    def __init__(self) -> None:
        self._luma: list[float] = []
        self._steps: list[float] = []
        self._last: NDArray[np.float32] | None = None

    def push(self, picture: NDArray[np.uint8]) -> None:
        """Take the next shown frame, uint8 [h, w, 3] RGB."""
        luma: NDArray[np.float32] = picture.astype(np.float32) @ _LUMA
        self._luma.append(float(luma.mean()))
        self._steps.append(0.0 if self._last is None else float(np.abs(luma - self._last).mean()))
        self._last = luma

    def of(self, span: Span) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(luma [frames], steps [frames]) of a span; the first step is 0."""
        luma = np.array(self._luma[span.first : span.last], np.float32)
        steps = np.array(self._steps[span.first : span.last], np.float32)
        steps[:1] = 0
        return luma, steps


class Sampler:
    """Collects the sample of one clip after the other; pass `observe` to `curate.cut.cut`.

    Args:
        times_s: when each frame of the source is shown; float64 [frames + 1].
        codec: name of the source's decoder.
        config: how many pictures, how large.
    """

    def __init__(self, times_s: NDArray[np.float64], codec: str, config: ScoreConfig) -> None:
        self._times_s = times_s
        self._config = config
        self._scaler = VideoReformatter()
        self._motion = MotionMeter(codec)
        self._begin()

    def observe(self, span: Span, number: int, decoded: VideoFrame, finished: VideoFrame) -> None:
        """Looks at one frame of the span being cut."""
        since_s = float(self._times_s[number] - self._times_s[span.first])
        self._motion.push(decoded, since_s)
        if since_s + 1e-9 < len(self._pictures) / self._config.fps:
            return
        scale = min(1.0, self._config.long_side_px / max(finished.width, finished.height))
        small = self._scaler.reformat(
            finished,
            max(2, round(finished.width * scale)),
            max(2, round(finished.height * scale)),
            "rgb24",
            interpolation="AREA",
            threads=1,
        )
        self._pictures.append(np.asarray(small.to_ndarray(), np.uint8))
        self._picture_times_s.append(since_s)

    def take(self, clip: Clip, stats: FrameStats) -> ClipSample:
        """The sample of the clip just cut; the next one begins afresh.

        Args:
            clip: just cut.
            stats: of the whole source.
        """
        luma, steps = stats.of(clip.span)
        motion = self._motion.take()
        sample = ClipSample(
            pictures=np.stack(self._pictures),
            times_s=np.array(self._picture_times_s),
            luma=luma,
            steps=steps,
            motion=motion.motion,
            motion_local=motion.motion_local,
            vectors_missing=motion.vectors_missing,
            width=clip.geometry.width,
            height=clip.geometry.height,
            frames=clip.frames,
            fps=float(clip.rate),
            duration_s=float(clip.frames / clip.rate),
            audio_dbfs=levels(clip.data),
        )
        self._begin()
        return sample

    def drop(self) -> None:
        """Forgets what was collected of a span that became no clip."""
        self._motion.take()
        self._begin()

    def _begin(self) -> None:
        self._pictures: list[NDArray[np.uint8]] = []
        self._picture_times_s: list[float] = []
