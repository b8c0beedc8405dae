"""The shot detector of the pipeline: colour and structure of the picture, on a CPU, while decoding."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.shots.cuts import REACH, cut_score
from curate.shots.dissolves import HALF_WIDTHS, Dissolve, best_dissolve
from curate.shots.fades import LONGEST, FadeFinder
from curate.shots.features import HEIGHT, WIDTH, features
from curate.shots.history import History
from curate.shots.types import Transition

_HISTORY = REACH + 1 + max(LONGEST, 2 * max(HALF_WIDTHS) + 1)


class ColourDetectorConfig(BaseModel, frozen=True, extra="forbid"):
    """Thresholds of the shot detector; the defaults and their margins are in docs/benchmarks/shots.md."""

    cut_threshold: float = Field(
        0.65, gt=0, description="a hard cut is reported above this score; lower finds more and errs more"
    )
    gradual_threshold: float = Field(
        0.85, gt=0, description="a dissolve is reported above this score; lower finds more and errs more"
    )
    blank_contrast: float = Field(
        4.0,
        ge=0,
        description="standard deviation of luminance, 0..255, below which a frame is black, white or empty",
    )
    colour_weight: float = Field(0.2, ge=0, description="weight of a full change of colour beside structure")
    motion_weight: float = Field(
        0.5, ge=0, description="share of the motion around a cut that is taken off its score"
    )


class ColourDetector:
    """Finds hard cuts, dissolves and fades in one pass; a `ShotDetector`.

    Frames are judged once the next few are known. What is kept is the features of about two seconds of
    frames and the transitions found so far.
    """

    def __init__(self, config: ColourDetectorConfig) -> None:
        self._config = config
        self._history = History(_HISTORY)
        self._fades = FadeFinder(config.blank_contrast, config.cut_threshold, config.colour_weight)
        self._cuts: list[int] = []  # first frame after each
        self._dissolves: list[Dissolve] = []
        self._shot_first = 0  # first frame since the last cut or even tone

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return WIDTH, HEIGHT

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [36, 64, 3] RGB."""
        self._history.append(features(frame))
        if self._history.end > REACH:
            self._judge(self._history.end - 1 - REACH)

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping."""
        for frame in range(max(0, self._history.end - REACH), self._history.end):
            self._judge(frame)
        self._fades.finish(self._history)
        fades = self._fades.found
        others = [Transition(frame - 1, frame, "cut") for frame in self._cuts]
        others += [Transition(found.start_frame, found.end_frame, "gradual") for found in self._dissolves]
        return sorted(
            [*fades, *(found for found in others if not any(_overlap(found, fade) for fade in fades))],
            key=lambda transition: transition.start_frame,
        )

    def _judge(self, frame: int) -> None:
        history, config = self._history, self._config
        blank = self._fades.is_blank(history[frame])
        cut = (
            frame > self._shot_first
            and not blank
            # A cut is at least as large a step as its score: most frames need no closer look.
            and history.step(frame) + config.colour_weight > config.cut_threshold
            and cut_score(history, frame, config.colour_weight, config.motion_weight) > config.cut_threshold
        )
        if cut:
            self._cuts.append(frame)
            self._shot_first = frame
        self._fades.push(history, frame, self._shot_first)
        if blank:
            self._shot_first = frame + 1
        else:
            self._seek_dissolve(frame)

    def _seek_dissolve(self, frame: int) -> None:
        dissolve = best_dissolve(
            self._history,
            max(self._shot_first, self._history.first),
            frame,
            self._config.colour_weight,
            self._config.gradual_threshold,
        )
        if dissolve is not None:
            self._keep_best(dissolve)

    def _keep_best(self, dissolve: Dissolve) -> None:
        """Add a dissolve unless one found before, in a window that overlaps, is surer."""
        known = self._dissolves
        apart = len(known)
        while apart and known[apart - 1].end_frame > dissolve.start_frame:
            apart -= 1
        if all(rival.score < dissolve.score for rival in known[apart:]):
            known[apart:] = [dissolve]


def _overlap(a: Transition, b: Transition) -> bool:
    return a.start_frame < b.end_frame and b.start_frame < a.end_frame
