"""Frame skipping at high frame rates, since detectors were tuned for 24 to 30 frames per second."""

from array import array
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.shots.types import (
    Candidate,
    KnownTransitions,
    LookaheadDetector,
    ShotDetector,
    Transition,
    WeighingDetector,
)

_USUAL_FPS = 28  # mean of 24 and 30, the usual rates in tuning and training of the detectors
_MOST_SKIPPED = 8  # maximum step; a rate above 240 is usually a wrong header


def thin_frames(detector: ShotDetector, step: int) -> ShotDetector:
    """Wrap a detector so that it gets every ``step``-th frame; lookahead is kept."""
    if step == 1:
        return detector
    if isinstance(detector, LookaheadDetector):
        return _LookaheadThinned(detector, detector, step)
    return ThinnedDetector(detector, step)


def frame_step(fps: float) -> int:
    """Return the step between analysed frames: 1 below 42 frames per second, 2 at 50 and 60, 4 at 120."""
    return max(1, min(_MOST_SKIPPED, round(fps / _USUAL_FPS)))


class ThinnedDetector:
    """Adapter that passes every `step`-th frame to a detector and places its cuts to the frame; a `ShotDetector`.

    A cut is put where neighbouring frames differ most. Edges of a gradual transition are frames that the
    inner detector saw unblended. So up to `step` - 1 unblended frames are lost at either end, and no blended
    one is kept. Memory grows by one byte per frame passed on.
    """

    def __init__(self, detector: ShotDetector, step: int) -> None:
        self._detector = detector
        self._step = step
        self._frames = 0
        self._largest = array("B")  # offset of the largest change, from the previous frame passed on
        self._last: NDArray[np.int16] | None = None
        self._changes: list[int] = []  # changes since the previous frame passed on

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`."""
        return self._detector.analysis_size

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, [height, width, 3] RGB."""
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
        """Return all transitions, sorted and disjoint, in frames of the video."""
        return [self._place_transition(transition) for transition in self._detector.finish()]

    def candidates(self) -> list[Candidate]:
        """Return what the inner detector weighed, in frames of the video."""
        if not isinstance(self._detector, WeighingDetector):
            return []
        return [
            replace(each, transition=self._place_transition(each.transition))
            for each in self._detector.candidates()
        ]

    def _place_transition(self, transition: Transition) -> Transition:
        start, end = transition.start_frame * self._step, transition.end_frame * self._step
        if transition.kind == "cut":
            end = start + self._largest[transition.end_frame]
            start = end - 1
        return Transition(start, end, transition.kind)


class _LookaheadThinned(ThinnedDetector):
    """`ThinnedDetector` around a `LookaheadDetector`."""

    def __init__(self, detector: ShotDetector, lookahead: LookaheadDetector, step: int) -> None:
        super().__init__(detector, step)
        self._lookahead = lookahead
        self._finished = False

    def finish(self) -> list[Transition]:
        """Return all transitions, sorted and disjoint, in frames of the video."""
        self._finished = True
        return super().finish()

    @property
    def judged(self) -> int:
        if self._finished:
            return self._frames
        return max(0, (self._lookahead.judged - 1) * self._step + 1)

    @property
    def settled(self) -> int:
        return self._frames if self._finished else max(0, (self._lookahead.settled - 1) * self._step + 1)

    @property
    def judged_after(self) -> int:
        return (self._lookahead.judged_after + 2) * self._step

    @property
    def settled_after(self) -> int:
        return (self._lookahead.settled_after + 1) * self._step

    def known_transitions(self, first: int) -> KnownTransitions:
        known_transitions = self._lookahead.known_transitions(first // self._step)
        rescaled = [self._place_transition(transition) for transition in known_transitions.transitions]
        fading = (
            None if known_transitions.fading_since is None else known_transitions.fading_since * self._step
        )
        return KnownTransitions(
            [transition for transition in rescaled if transition.end_frame > first], fading
        )
