"""The features of the last frames, by frame number."""

from collections import deque
from collections.abc import Sequence

from curate.shots.colour.features import Features


class History:
    """A bounded window over the frames of a video.

    Args:
        frames: How many frames are held.

    Attributes:
        end: One past the last frame seen.
    """

    def __init__(self, frames: int) -> None:
        self._features: deque[Features] = deque(maxlen=frames)
        self.end = 0

    def extend(self, features: Sequence[Features]) -> None:
        """Take the next frames; the oldest ones fall out when the window is full."""
        self._features.extend(features)
        self.end += len(features)

    @property
    def first(self) -> int:
        """The oldest frame still held."""
        return self.end - len(self._features)

    def __getitem__(self, frame: int) -> Features:
        return self._features[frame - self.first]
