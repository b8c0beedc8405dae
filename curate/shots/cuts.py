"""Hard cuts: the pictures before and after differ far more than the motion around explains."""

from itertools import product

import numpy as np

from curate.shots.features import (
    Features,
    colour_difference,
    structure_difference,
    unshifted_difference,
)
from curate.shots.history import History

REACH = 4
"""Frames on each side that a cut is judged by; what comes back within them is a flash, not a shot."""

_OFFSETS = (0, 2, 4)


def unlikeness(before: list[Features], after: list[Features], colour_weight: float) -> float:
    """Difference of the most alike pictures of two groups, in structure and in colour."""
    pairs = list(product(before, after))
    structure = min(structure_difference(a, b) for a, b in pairs)
    colour = min(colour_difference(a, b) for a, b in pairs)
    return structure + colour_weight * colour


def cut_score(
    history: History, frame: int, colour_weight: float, motion_weight: float, above: float
) -> float | None:
    """How far a cut right before `frame` stands out, from below 0 to 1 + colour_weight; None up to `above`.

    The most alike of the pictures up to REACH frames before and after are compared, so that flashes and broken
    frames find the old scene again, less a share of the usual step between neighbours on the calmer side.
    """
    # No score is above the unlikeness of any one pair: most frames need no closer look.
    if history.step_bound(frame) + colour_weight <= above:
        return None
    before = [history[frame - 1 - offset] for offset in _OFFSETS if frame - 1 - offset >= history.first]
    after = [history[frame + offset] for offset in _OFFSETS if frame + offset < history.end]
    pairs = list(product(before, after))
    colour = colour_weight * min(colour_difference(a, b) for a, b in pairs)
    if min(unshifted_difference(a, b) for a, b in pairs) + colour <= above:
        return None
    unlike = float("inf")
    for a, b in pairs:
        unlike = min(unlike, structure_difference(a, b) + colour)
        if unlike <= above:
            return None
    motions = [
        float(np.mean(steps))
        for steps in (
            history.steps(range(max(1, frame - REACH), frame)),
            history.steps(range(frame + 1, frame + 1 + REACH)),
        )
        if steps
    ]
    score = unlike - motion_weight * min(motions, default=0.0)
    return score if score > above else None
