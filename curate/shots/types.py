"""Protocols and results of shot detectors, and the shots that follow from transitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Transition:
    """Change from one shot to the next; frames count from 0 in display order.

    Attributes:
        start_frame: Last unblended frame of the outgoing shot.
        end_frame: First unblended frame of the incoming shot; start_frame + 1 for a hard cut.
        kind: "gradual" for dissolves and fades, which leave blended frames between the two.
    """

    start_frame: int
    end_frame: int
    kind: Literal["cut", "gradual"]


CandidateKind = Literal["cut", "abrupt", "dissolve", "gradual", "fade"]
"""Kinds of candidates, by what a detector sees.

cut: a step between neighbouring frames. abrupt: one that makes the whole change. fade: over an even tone. dissolve: a
run with a mixture of the pictures before and after it. gradual: any other run, such as a wipe or a whip pan.
"""


@dataclass(frozen=True)
class Candidate:
    """Change that a detector weighed, reported or not.

    Attributes:
        transition: The change, as it would be reported.
        kind: What the detector sees.
        score: Its measure of certainty, 0 to 1; no probability.
    """

    transition: Transition
    kind: CandidateKind
    score: float


class KnownTransitions(NamedTuple):
    """Transitions known before the end of the video.

    Attributes:
        transitions: Transitions found so far, sorted and disjoint.
        fading_since: Last unblended frame before an unfinished fade, or None.
    """

    transitions: list[Transition]
    fading_since: int | None


def with_cuts(transitions: Sequence[Transition], frames: Sequence[int]) -> list[Transition]:
    """Add hard cuts before ``frames`` where no transition is."""
    cuts = [Transition(frame - 1, frame, "cut") for frame in frames]
    new = [cut for cut in cuts if not any(overlap(cut, other) for other in transitions)]
    return sorted([*transitions, *new], key=lambda transition: transition.start_frame)


def overlap(a: Transition, b: Transition, margin: int = 0) -> bool:
    """Return True when two transitions share a frame step, or lie less than `margin` frames apart."""
    return a.start_frame < b.end_frame + margin and b.start_frame < a.end_frame + margin


@runtime_checkable
class LookaheadDetector(Protocol):
    """Detector with lookahead: it reports most transitions soon after their frames."""

    @property
    def judged(self) -> int:
        """Number of frames analysed so far."""

    @property
    def settled(self) -> int:
        """Frame before which no further transition will be reported."""

    @property
    def judged_after(self) -> int:
        """Maximum number of frames pushed before a frame is analysed."""

    @property
    def settled_after(self) -> int:
        """Frames analysed after a doubtful transition until no better one can replace it."""

    def known_transitions(self, first: int) -> KnownTransitions:
        """Return the known transitions that end after frame ``first``; later frames may change them."""


class Segment(NamedTuple):
    """Frames [first, end) of a video."""

    kind: Literal["shot", "transition"]
    first: int
    end: int


class ShotDetector(Protocol):
    """Detector that reads a video once, frame by frame, in memory independent of its length."""

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`, which are scaled to it without regard to aspect."""

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, [height, width, 3] RGB."""

    def finish(self) -> list[Transition]:
        """Return all transitions, sorted and disjoint; ends the input."""


@runtime_checkable
class WeighingDetector(Protocol):
    """Detector that says what it weighed, reported or not."""

    def candidates(self) -> list[Candidate]:
        """Return, after `finish`, all changes that were weighed, of which several may lie at one place."""


def segments(transitions: Sequence[Transition], frames: int) -> list[Segment]:
    """Cover frames [0, frames) by shots and, between them, the blended frames of gradual transitions.

    Blended frames are pieces of their own: they belong to no shot, but must appear in the accounting.

    Args:
        transitions: Sorted, disjoint transitions of a detector.
        frames: Number of frames in the video; 0 gives no pieces.
    """
    pieces: list[Segment] = []
    first = 0
    for transition in transitions:
        pieces.append(Segment("shot", first, transition.start_frame + 1))
        pieces.append(Segment("transition", transition.start_frame + 1, transition.end_frame))
        first = transition.end_frame
    pieces.append(Segment("shot", first, frames))
    return [piece for piece in pieces if piece.first < piece.end]
