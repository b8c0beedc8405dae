"""Where every shot of a reel lies, frame by frame, and how it goes over into the next: pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.footage.canvas import Scene


@dataclass(frozen=True)
class Shot:
    """One scene on show for some seconds, transitions left and right of it not counted.

    Shots of equal scene, take, seed and frame size show the same pictures.
    """

    scene: Scene
    seconds: float
    take: int = 0


@dataclass(frozen=True)
class Join:
    """How one shot goes over into the next.

    `frames` is the length of a dissolve, or of either fade around `black` black frames.
    """

    type: Literal["cut", "dissolve", "fade_through_black"] = "cut"
    frames: int = 0
    black: int = 0

    @property
    def gap(self) -> int:
        """Frames between the last untouched frame of one shot and the first of the next."""
        return self.frames if self.type == "dissolve" else 2 * self.frames + self.black


@dataclass(frozen=True)
class Transition:
    """A join in its place: between `start_frame` and `end_frame`, which are both untouched."""

    join: Join
    start_frame: int
    end_frame: int


@dataclass(frozen=True)
class Timeline:
    """The spans of the untouched frames of every shot (first, last), and the transitions between them."""

    shots: tuple[tuple[int, int], ...]
    transitions: tuple[Transition, ...]

    @property
    def frames(self) -> int:
        """Frames in all."""
        return self.shots[-1][1] + 1

    def visible_from(self, shot: int) -> int:
        """The first frame that shows anything of a shot."""
        return self.shots[shot][0] - (self.transitions[shot - 1].join.frames if shot else 0)

    def weights(self, frame: int) -> dict[int, float]:
        """Which shots a frame shows, and how much of each; what is missing to 1 is black."""
        weights = {}
        for shot, (first, last) in enumerate(self.shots):
            joins = [each.join for each in self.transitions[max(0, shot - 1) : shot + 1]]
            away = max(first - frame, frame - last, 0)
            fade = 0 if not away else (joins[0] if frame < first else joins[-1]).frames
            if away <= fade:
                weights[shot] = 1 - away / (fade + 1)
        return weights


def lay_out(lengths: Sequence[int], joins: Sequence[Join]) -> Timeline:
    """Place shots of `lengths` untouched frames, joined by one join fewer."""
    shots, transitions, first = [], [], 0
    for length, join in zip(lengths, (*joins, None), strict=True):
        last = first + length - 1
        shots.append((first, last))
        if join:
            first = last + join.gap + 1
            transitions.append(Transition(join, last, first))
    return Timeline(tuple(shots), tuple(transitions))
