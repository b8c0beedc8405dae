"""Abruptness of a change: whether one step between neighbouring frames makes all of it.

The networks weigh differences among frames up to a second apart, and doubt a hard cut beside which other things
move. Its shape is certain all the same. The step is as large as the difference between the pictures well
before and well after it, and no other step is nearly as large.
"""

from reelweave.curate.shots.colour.features import dissimilarity
from reelweave.curate.shots.colour.history import FeatureWindow

BEFORE, AFTER = 5, 6
"""Frames that are looked at before the frame in front of a cut, and from the frame after it on."""

_LEAST = 0.7  # minimum step: that of two scenes
_SHARE = 0.9  # minimum share of the step in the whole difference; a flash or a passing object has less on the far side
_OTHERS = 0.55  # maximum size of any other step, relative to this one


def is_abrupt(history: FeatureWindow, frame: int) -> bool:
    """Return True when one step makes the change before a frame.

    Args:
        history: Features of the frames around it; fewer frames at the start or the end of a video.
        frame: First frame after the step.
    """
    step = dissimilarity(history[frame - 1], history[frame])
    if step < _LEAST:
        return False
    first, end = max(history.first, frame - 1 - BEFORE), min(history.end, frame + AFTER)
    total = dissimilarity(history[first], history[end - 1])
    neighbours = (dissimilarity(history[at - 1], history[at]) for at in range(first + 1, end) if at != frame)
    return (
        step >= _SHARE * total
        and total >= _SHARE * step
        and all(other <= _OTHERS * step for other in neighbours)
    )
