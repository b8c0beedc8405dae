"""Mixture inside a run: whether a frame in its middle shows the pictures before it and after it at once.

The networks doubt dissolves between moving pictures, since motion alone also makes frames differ more and more. But a
frame halfway through a dissolve is like both pictures, and one halfway through motion is like neither.
"""

from reelweave.curate.shots.colour.features import dissimilarity
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.types import Transition

_FEWEST = 6  # minimum frames of a change: in shorter ones no frame lies clearly in the middle
_LEAST = 0.7  # minimum difference of the pictures before and after: that of two scenes
_SHARED = 0.55  # maximum difference of a frame in the middle from either picture, relative to theirs


def holds_mixture(history: FeatureWindow, change: Transition) -> bool:
    """Return True when a frame in the middle third of a change is like both the picture before it and the one after.

    Args:
        history: Features of the frames around it.
        change: Last frame before the change and first frame after it.
    """
    start, end = change.start_frame, change.end_frame
    if end - start < _FEWEST or start < history.first or end >= history.end:
        return False
    before, after, third = history[start], history[end], (end - start) // 3
    total = dissimilarity(before, after)
    return total >= _LEAST and any(
        max(dissimilarity(before, history[at]), dissimilarity(after, history[at])) <= _SHARED * total
        for at in range(start + third, end - third + 1)
    )
