"""Clips that were encoded before the spans of their source were known."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.cut.crop import Crop
from reelweave.curate.cut.smart.plan import Plan
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.shots.spans import Span
from reelweave.curate.source_pass.sampling import ClipPictures


@dataclass(frozen=True, eq=False)
class AheadClip:
    """Clip that was encoded before the spans of its source were known.

    Attributes:
        first: First frame.
        last: One past the last frame.
        rate: Frames per second.
        data: MP4 file of pictures only, index last.
        collected: Samples of its frames.
        shown: Number of frames of the clip for each frame of the source.
        times_s: Display time of each frame, and the end of the last one.
        crop: Lines of its pictures that were cropped, or None.
        plan: Plan of a smart cut, whose packets are counted from the first that was read; None where all is encoded.
    """

    first: int
    last: int
    rate: Fraction
    data: bytes
    collected: ClipPictures
    shown: NDArray[np.intp]
    times_s: NDArray[np.float64]
    plan: Plan | None
    crop: Crop | None = None


def shows(shown: NDArray[np.intp], span: Span, line: FrameTimes) -> bool:
    """Return whether a clip shows each frame of a span as often as it would now that the timeline is known.

    Args:
        shown: Number of frames of the clip for each frame of the source.
        span: The span.
        line: Timeline of the source.
    """
    slots = line.clip_frames(span.first, span.last)
    return np.array_equal(shown, np.bincount(slots - span.first, minlength=span.last - span.first))
