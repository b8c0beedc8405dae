"""The features of the last frames, by frame number."""

from collections import deque
from collections.abc import Iterable

from curate.shots.features import Features, structure_difference


class History:
    """A bounded window over the frames of a video.

    Attributes:
        end: One past the last frame seen.
    """

    def __init__(self, frames: int) -> None:
        self._features: deque[Features] = deque(maxlen=frames)
        self._steps: deque[float] = deque(maxlen=frames)
        self.end = 0

    def append(self, features: Features) -> None:
        """Take the next frame; the oldest one falls out when the window is full."""
        step = structure_difference(self._features[-1], features) if self._features else 0.0
        self._features.append(features)
        self._steps.append(step)
        self.end += 1

    @property
    def first(self) -> int:
        """The oldest frame still held."""
        return self.end - len(self._features)

    def __getitem__(self, frame: int) -> Features:
        return self._features[frame - self.first]

    def step(self, frame: int) -> float:
        """Difference in structure between a frame and the one before it; 0 for the first frame of a video."""
        return self._steps[frame - self.first]

    def steps(self, frames: Iterable[int]) -> list[float]:
        """The steps of those frames that are held."""
        return [self.step(frame) for frame in frames if self.first <= frame < self.end]
