"""Long clips are captioned in windows: which frames belong together, and which pictures show them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Frames [start, end) of a clip."""

    start: int
    end: int


def windows(frames: int, length: int, shortest: int) -> list[Window]:
    """Cuts a clip into windows of ``length`` frames.

    A rest of fewer than ``shortest`` frames belongs to the last window, as NeMo Curator and cosmos-curate do it.
    A clip shorter than that is one window.

    Args:
        frames: of the clip.
        length: of a window, frames.
        shortest: rest that is a window of its own, frames.
    """
    starts = list(range(0, max(frames, 1), length))
    if len(starts) > 1 and frames - starts[-1] < shortest:
        starts.pop()
    return [Window(start, end) for start, end in zip(starts, [*starts[1:], frames], strict=True)]


def pictures_of(parts: Sequence[Window], rate: float, times_s: Sequence[float]) -> list[list[int]]:
    """Which pictures show each window: the numbers of those whose times fall into it.

    A window too short for a picture of its own gets the one shown when it begins.

    Args:
        parts: windows of a clip, in order.
        rate: frames per second of the clip.
        times_s: of the pictures, rising, the first one at 0.
    """
    numbers = [round(time_s * rate) for time_s in times_s]
    found = []
    for part in parts:
        inside = [at for at, number in enumerate(numbers) if part.start <= number < part.end]
        found.append(inside or [max(at for at, number in enumerate(numbers) if number <= part.start)])
    return found
