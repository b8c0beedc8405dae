"""Fades: the picture goes to one even tone, mostly black, and comes back as another picture."""

from dataclasses import dataclass

import numpy as np

from curate.shots.colour.features import Features, unlikeness
from curate.shots.colour.history import History
from curate.shots.types import Transition

LONGEST = 45
"""Frames of fading looked for on each side of the even tone."""

_FLICKER = 4  # lit frames between even tones that are no shot
_LEVEL = 8  # frames of steady contrast expected beside a fade
_MOST_HIDDEN = 2  # frames of a fade too faint to be told from the tone


@dataclass(frozen=True)
class _Outgoing:
    frame: int
    """The last untouched frame; -1 when the video began with the even tone."""
    picture: Features | None


class FadeFinder:
    """Follows the frames one by one; a hard cut to or from an even tone is a fade of no frames.

    Args:
        blank_contrast: Standard deviation of the luminance below which a frame is one even tone, grey levels.
        same_below: Unlikeness below which the picture that comes back is the old one: a flash or a drop-out.
    """

    def __init__(self, blank_contrast: float, same_below: float) -> None:
        self._blank_contrast = blank_contrast
        self._same_below = same_below
        self._outgoing: _Outgoing | None = None  # None: no even tone is waiting for its end
        self._first_lit = 0  # first frame after the last even tone
        self._lit: list[float] = []  # contrasts since then, while the fade-in may go on
        self.found: list[Transition] = []

    @property
    def waiting_since(self) -> int | None:
        """The last untouched frame before an even tone whose end has not been seen."""
        outgoing = self._outgoing
        return None if outgoing is None or outgoing.picture is None else outgoing.frame

    def is_blank(self, features: Features) -> bool:
        """Whether the frame is one even tone."""
        return features.contrast < self._blank_contrast

    def push(self, history: History, frame: int, shot_first: int) -> None:
        """Look at the next frame, held by `history`; its shot began, at a hard cut or here, at `shot_first`."""
        features = history[frame]
        blank = self.is_blank(features)
        if blank and len(self._lit) <= _FLICKER:
            self._lit = []  # a flicker, no shot
        if self._lit and (blank or frame == shot_first or len(self._lit) == LONGEST):
            self._close(history)
        if blank:
            if self._outgoing is None:
                self._outgoing = self._open(history, frame, shot_first)
            self._first_lit = frame + 1
        elif self._outgoing is not None:
            self._lit.append(features.contrast)

    def finish(self, history: History) -> None:
        """The video is over; a fade-out that nothing follows is no transition."""
        if self._lit:
            self._close(history)

    def _open(self, history: History, blank: int, shot_first: int) -> _Outgoing:
        known = self.found[-1].end_frame if self.found else 0
        earliest = max(shot_first, known, history.first, blank - LONGEST)
        contrasts = [history[frame].contrast for frame in range(blank - 1, earliest - 1, -1)]
        last = blank - 1 - faded_frames(contrasts)
        return _Outgoing(last, history[last] if last >= earliest else None)

    def _close(self, history: History) -> None:
        outgoing, end = self._outgoing, self._first_lit + faded_frames(self._lit)
        self._outgoing, self._lit = None, []
        if outgoing is None or outgoing.picture is None:
            return
        if unlikeness(outgoing.picture, history[end]) >= self._same_below:
            self.found.append(Transition(outgoing.frame, end, "gradual"))


def faded_frames(contrasts: list[float]) -> int:
    """How many of the frames next to an even tone are still fading.

    A fade changes the contrast linearly: the contrasts, from the tone outwards, are fitted by a ramp from
    nothing and a short level after it, for every length of the ramp, in least squares of their logarithms,
    because what begins far above nothing is no fade.
    """
    if not contrasts:
        return 0
    faded, hidden, place = np.ogrid[: len(contrasts), : _MOST_HIDDEN + 1, : len(contrasts)]
    hidden = hidden * (faded > 0)
    used = place < faded + _LEVEL
    ramps = np.minimum(1, (place + 1 + hidden) / (faded + 1 + hidden))
    misfits = np.log(np.array(contrasts) / ramps)
    errors = misfits.var(axis=2, where=used).min(axis=1)
    return int(errors.argmin())
