"""Windows of long clips, which are captioned separately, and their pictures."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CaptionWindow:
    """Frames [start, end) of a clip."""

    start: int
    end: int


def windows(frames: int, length: int, shortest: int) -> list[CaptionWindow]:
    """Split a clip into windows of ``length`` frames.

    A rest of fewer than ``shortest`` frames joins the last window, as in NeMo Curator and cosmos-curate. A
    shorter clip is one window.

    Args:
        frames: Number of frames of the clip.
        length: Frames per window.
        shortest: Minimum length of the last window, frames.
    """
    starts = list(range(0, max(frames, 1), length))
    if len(starts) > 1 and frames - starts[-1] < shortest:
        starts.pop()
    return [CaptionWindow(start, end) for start, end in zip(starts, [*starts[1:], frames], strict=True)]


def pictures_of(parts: Sequence[CaptionWindow], rate: float, times_s: Sequence[float]) -> list[list[int]]:
    """Return the indices of each window's pictures: those shown within it.

    A window too short for a picture of its own gets the one shown when it begins.

    Args:
        parts: Windows of a clip, in order.
        rate: Frames per second of the clip.
        times_s: Display times of the pictures, rising, the first one 0.
    """
    frame_indices = [round(time_s * rate) for time_s in times_s]
    shown = []
    for part in parts:
        inside = [at for at, frame_index in enumerate(frame_indices) if part.start <= frame_index < part.end]
        shown.append(
            inside or [max(at for at, frame_index in enumerate(frame_indices) if frame_index <= part.start)]
        )
    return shown
