"""Steadiness around a run: whether it leads from one picture that holds still to another.

The networks say little of whip pans and short dissolves, since motion inside a shot looks alike. But between two
different pictures, each of which hardly changes for some frames, something replaced one by the other.
"""

from reelweave.curate.shots.colour.features import dissimilarity
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.types import Transition

AROUND = 5
"""Frames that are looked at before a transition and after it."""

_LONGEST = 10  # maximum frames of a change: a camera that turns from one view to another takes longer
_LEAST = 0.7  # minimum difference of the pictures before and after: that of two scenes
_STILL = 0.35  # maximum change on either side, relative to that difference


def leads_between_still_pictures(history: FeatureWindow, change: Transition) -> bool:
    """Return True when the pictures on both sides of a change hold still, and differ.

    Args:
        history: Features of the frames around it; fewer frames at the start or the end of a video.
        change: Last frame before the change and first frame after it.
    """
    start, end = change.start_frame, change.end_frame
    if end - start > _LONGEST or start < history.first or end >= history.end:
        return False
    before, after = history[start], history[end]
    max_change = _STILL * (total := dissimilarity(before, after))
    return (
        total >= _LEAST
        and all(
            dissimilarity(before, history[at]) <= max_change
            for at in range(max(history.first, start - AROUND), start)
        )
        and all(
            dissimilarity(after, history[at]) <= max_change
            for at in range(end + 1, min(history.end, end + AROUND + 1))
        )
    )
