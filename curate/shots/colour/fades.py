"""Fades: the picture turns blank, usually black, and another picture appears."""

from dataclasses import dataclass

import numpy as np

from reelweave.curate.shots.colour.features import Features, dissimilarity
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.types import Transition

LONGEST = 45
"""Maximum length of a fade on each side of the blank frames."""

_FLICKER = 4  # maximum lit frames between blank ones that are no shot
_LEVEL = 8  # frames of steady contrast expected next to a fade
_MOST_HIDDEN = 2  # maximum frames of a fade too faint to differ from blank


@dataclass(frozen=True)
class _Outgoing:
    frame: int
    """Last unblended frame; -1 when the video began blank."""
    picture: Features | None


class FadeFinder:
    """Detector of fades, frame by frame; a hard cut to or from blank frames is a fade of no frames.

    Args:
        blank_contrast: Standard deviation of the luminance below which a frame is blank, grey levels.
        same_below: Difference below which the returning picture is the old one, after a flash or a drop-out.
    """

    def __init__(self, blank_contrast: float, same_below: float) -> None:
        self._blank_contrast = blank_contrast
        self._same_below = same_below
        self._outgoing: _Outgoing | None = None  # None: no blank run is open
        self._first_lit = 0  # first frame after the last blank one
        self._lit: list[float] = []  # contrasts from there on, while the fade-in may continue
        self.found: list[Transition] = []

    @property
    def waiting_since(self) -> int | None:
        """Last unblended frame before a blank run whose end is not known yet."""
        outgoing = self._outgoing
        return None if outgoing is None or outgoing.picture is None else outgoing.frame

    def is_blank(self, features: Features) -> bool:
        """Return True when the frame is one even tone."""
        return features.contrast < self._blank_contrast

    def push(self, history: FeatureWindow, frame: int, shot_first: int) -> None:
        """Process the next frame of `history`; `shot_first` is the start of its shot at the last hard cut."""
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

    def finish(self, history: FeatureWindow) -> None:
        """End the input; a fade-out without a later picture is no transition."""
        if self._lit:
            self._close(history)

    def _open(self, history: FeatureWindow, blank: int, shot_first: int) -> _Outgoing:
        last_fade_end = self.found[-1].end_frame if self.found else 0
        earliest = max(shot_first, last_fade_end, history.first, blank - LONGEST)
        contrasts = [history[frame].contrast for frame in range(blank - 1, earliest - 1, -1)]
        last = blank - 1 - faded_frames(contrasts)
        return _Outgoing(last, history[last] if last >= earliest else None)

    def _close(self, history: FeatureWindow) -> None:
        outgoing, end = self._outgoing, self._first_lit + faded_frames(self._lit)
        self._outgoing, self._lit = None, []
        if outgoing is None or outgoing.picture is None:
            return
        if dissimilarity(outgoing.picture, history[end]) >= self._same_below:
            self.found.append(Transition(outgoing.frame, end, "gradual"))


def faded_frames(contrasts: list[float]) -> int:
    """Return the number of frames next to blank ones that are still fading.

    A fade changes the contrast linearly. The contrasts, outwards from the blank frame, are fitted by a ramp
    from zero and a short level after it. Every length of the ramp is tried. Least squares use logarithms,
    because a run that begins far above zero is no fade.
    """
    if not contrasts:
        return 0
    faded, hidden, step = np.ogrid[: len(contrasts), : _MOST_HIDDEN + 1, : len(contrasts)]
    hidden = hidden * (faded > 0)
    used = step < faded + _LEVEL
    ramps = np.minimum(1, (step + 1 + hidden) / (faded + 1 + hidden))
    misfits = np.log(np.array(contrasts) / ramps)
    errors = misfits.var(axis=2, where=used).min(axis=1)
    return int(errors.argmin())
