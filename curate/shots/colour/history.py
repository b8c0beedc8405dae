"""Sliding window of the features of the last frames, by frame number."""

from collections import deque
from collections.abc import Sequence

from reelweave.curate.shots.colour.features import Features


class FeatureWindow:
    """Bounded window over the frames of a video.

    Args:
        frames: Maximum number of buffered frames.

    Attributes:
        end: One past the last frame added.
    """

    def __init__(self, frames: int) -> None:
        self._features: deque[Features] = deque(maxlen=frames)
        self.end = 0

    def extend(self, features: Sequence[Features]) -> None:
        """Add the next frames; the oldest ones are dropped when the window is full."""
        self._features.extend(features)
        self.end += len(features)

    @property
    def first(self) -> int:
        """Oldest frame in the window."""
        return self.end - len(self._features)

    def __getitem__(self, frame: int) -> Features:
        return self._features[frame - self.first]
