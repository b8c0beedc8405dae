"""What every shot detector takes and gives back, and the shots that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Transition:
    """A change from one shot to the next; frames count from 0 in shown order.

    Attributes:
        start_frame: The last untouched frame of the outgoing shot.
        end_frame: The first untouched frame of the incoming shot; start_frame + 1 for a hard cut.
        kind: "gradual" for dissolves and fades, which leave mixed frames between the two.
    """

    start_frame: int
    end_frame: int
    kind: Literal["cut", "gradual"]


class Foretold(NamedTuple):
    """What a detector knows before the end.

    Attributes:
        transitions: found up to now, sorted and not overlapping.
        fading_since: the last untouched frame before a fade that is not over, or None.
    """

    transitions: list[Transition]
    fading_since: int | None


def with_cuts(transitions: Sequence[Transition], frames: Sequence[int]) -> list[Transition]:
    """The transitions, and hard cuts before ``frames`` where there is none yet."""
    cuts = [Transition(frame - 1, frame, "cut") for frame in frames]
    new = [cut for cut in cuts if not any(overlap(cut, other) for other in transitions)]
    return sorted([*transitions, *new], key=lambda transition: transition.start_frame)


def overlap(a: Transition, b: Transition, margin: int = 0) -> bool:
    """Whether two transitions share a frame step, or lie less than `margin` frames apart."""
    return a.start_frame < b.end_frame + margin and b.start_frame < a.end_frame + margin


@runtime_checkable
class ForetellingDetector(Protocol):
    """A detector that knows most transitions soon after their frames."""

    @property
    def judged(self) -> int:
        """Frames before this one have been judged."""

    @property
    def settled(self) -> int:
        """Frames before this one are in no transition that is not foretold yet."""

    @property
    def judged_after(self) -> int:
        """Frames pushed after one that has been judged, at most."""

    @property
    def settled_after(self) -> int:
        """Frames judged after a doubtful transition that has no better rival to come."""

    def foretell(self, first: int) -> Foretold:
        """What is known already of the transitions that end after frame ``first``; later frames may change it."""


class Piece(NamedTuple):
    """Frames [first, end) of a video."""

    kind: Literal["shot", "transition"]
    first: int
    end: int


class ShotDetector(Protocol):
    """Reads a video once, frame by frame, in memory that does not grow with its length."""

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) the frames must have; the picture is squeezed to it, whatever its aspect."""

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [height, width, 3] RGB."""

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping; nothing may be pushed afterwards."""


def pieces(transitions: Sequence[Transition], frames: int) -> list[Piece]:
    """Cover frames [0, frames) by shots and, between them, the mixed frames of gradual transitions.

    Mixed frames are pieces of their own because they belong to no shot and still have to be accounted for.

    Args:
        transitions: Sorted and not overlapping, as a detector gives them.
        frames: Frames in the video; 0 gives no pieces.
    """
    found: list[Piece] = []
    first = 0
    for transition in transitions:
        found.append(Piece("shot", first, transition.start_frame + 1))
        found.append(Piece("transition", transition.start_frame + 1, transition.end_frame))
        first = transition.end_frame
    found.append(Piece("shot", first, frames))
    return [piece for piece in found if piece.first < piece.end]
