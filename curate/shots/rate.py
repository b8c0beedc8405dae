"""High frame rates: detectors count frames, so they are shown about as many a second as they were made for."""

from array import array

import numpy as np
from numpy.typing import NDArray

from curate.shots.types import ForetellingDetector, Foretold, ShotDetector, Transition

_USUAL_FPS = 28  # between 24 and 30, the rates that the detectors were tuned and trained on
_MOST_SKIPPED = 8  # a rate above 240 is more often a wrong header than a real one


def thinned(detector: ShotDetector, step: int) -> ShotDetector:
    """The detector shown every ``step``-th frame; it foretells if the detector does."""
    if step == 1:
        return detector
    if isinstance(detector, ForetellingDetector):
        return _ForetellingThinned(detector, detector, step)
    return ThinnedDetector(detector, step)


def frame_step(fps: float) -> int:
    """Every how many frames to look: 1 below 42 frames per second, 2 at 50 and 60, 4 at 120."""
    return max(1, min(_MOST_SKIPPED, round(fps / _USUAL_FPS)))


class ThinnedDetector:
    """Shows every `step`-th frame to another detector and places its cuts to the frame; a `ShotDetector`.

    A cut is put where neighbouring frames differ most. The edges of a gradual transition are frames the other
    detector saw untouched, so that up to `step` - 1 untouched ones are lost at either end, and no mixed one kept.
    What is kept beside the other detector's memory is one byte per frame shown to it.
    """

    def __init__(self, detector: ShotDetector, step: int) -> None:
        self._detector = detector
        self._step = step
        self._frames = 0
        self._largest = array("B")  # frames after the frame shown before at which the largest change was
        self._last: NDArray[np.int16] | None = None
        self._changes: list[int] = []  # since the frame shown before

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return self._detector.analysis_size

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [height, width, 3] RGB."""
        green = frame[:, :, 1].astype(np.int16)
        if self._last is not None:
            self._changes.append(int(np.abs(green - self._last).sum()))
        self._last = green
        if self._frames % self._step == 0:
            self._detector.push(frame)
            self._largest.append(int(np.argmax(self._changes)) + 1 if self._changes else 0)
            self._changes = []
        self._frames += 1

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping, in frames of the video."""
        return [self._placed(found) for found in self._detector.finish()]

    def _placed(self, found: Transition) -> Transition:
        start, end = found.start_frame * self._step, found.end_frame * self._step
        if found.kind == "cut":
            end = start + self._largest[found.end_frame]
            start = end - 1
        return Transition(start, end, found.kind)


class _ForetellingThinned(ThinnedDetector):
    """A `ForetellingDetector` of every `step`-th frame."""

    def __init__(self, detector: ShotDetector, foretelling: ForetellingDetector, step: int) -> None:
        super().__init__(detector, step)
        self._foretelling = foretelling
        self._finished = False

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping, in frames of the video."""
        self._finished = True
        return super().finish()

    @property
    def judged(self) -> int:
        """Frames before this one have been judged."""
        if self._finished:
            return self._frames
        return max(0, (self._foretelling.judged - 1) * self._step + 1)

    @property
    def settled(self) -> int:
        """Frames before this one are in no transition that is not foretold yet."""
        return self._frames if self._finished else max(0, (self._foretelling.settled - 1) * self._step + 1)

    @property
    def judged_after(self) -> int:
        """Frames pushed after one that has been judged, at most."""
        return (self._foretelling.judged_after + 2) * self._step

    @property
    def settled_after(self) -> int:
        """Frames judged after a doubtful transition that has no better rival to come."""
        return (self._foretelling.settled_after + 1) * self._step

    def foretell(self, first: int) -> Foretold:
        """What is known already of the transitions that end after frame ``first``; later frames may change it."""
        known = self._foretelling.foretell(first // self._step)
        placed = [self._placed(found) for found in known.transitions]
        fading = None if known.fading_since is None else known.fading_since * self._step
        return Foretold([found for found in placed if found.end_frame > first], fading)
