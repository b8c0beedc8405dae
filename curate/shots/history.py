"""The features of the last frames, by frame number."""

from collections import deque
from collections.abc import Iterable, Sequence

from curate.shots.features import Features, structure_difference, unshifted_difference


class History:
    """A bounded window over the frames of a video.

    Args:
        frames: How many frames are held.

    Attributes:
        end: One past the last frame seen.
    """

    def __init__(self, frames: int) -> None:
        self._features: deque[Features] = deque(maxlen=frames)
        self._steps: deque[float | None] = deque(maxlen=frames)  # None: nobody has asked yet
        self.end = 0

    def extend(self, features: Sequence[Features]) -> None:
        """Take the next frames; the oldest ones fall out when the window is full."""
        self._features.extend(features)
        self._steps.extend([None] * len(features))
        self.end += len(features)

    @property
    def first(self) -> int:
        """The oldest frame still held."""
        return self.end - len(self._features)

    def __getitem__(self, frame: int) -> Features:
        return self._features[frame - self.first]

    def step(self, frame: int) -> float:
        """Difference in structure between a frame and the one before it; 0 for the oldest frame held."""
        place = frame - self.first
        step = self._steps[place]
        if step is None:
            step = structure_difference(self._features[place - 1], self._features[place]) if place else 0.0
            self._steps[place] = step
        return step

    def step_bound(self, frame: int) -> float:
        """A cheap number that `step` is never above."""
        place = frame - self.first
        return unshifted_difference(self._features[place - 1], self._features[place]) if place else 0.0

    def steps(self, frames: Iterable[int]) -> list[float]:
        """The steps of those frames that are held."""
        return [self.step(frame) for frame in frames if self.first <= frame < self.end]
