"""The shot detector of the pipeline: colour and structure of the picture, on a CPU, while decoding."""

import bisect
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.shots.cuts import REACH, cut_score
from curate.shots.dissolves import HALF_WIDTHS, Dissolve, Screen, best_dissolve
from curate.shots.fades import LONGEST, FadeFinder
from curate.shots.features import HEIGHT, WIDTH, features
from curate.shots.history import History
from curate.shots.types import Foretold, Transition, overlap

_Found = TypeVar("_Found")

_BATCH = 16  # frames taken in at once: the cost of a call is shared
_JUDGED_AFTER = _BATCH + REACH
_HISTORY = _JUDGED_AFTER + 1 + max(LONGEST, 2 * max(HALF_WIDTHS) + 1)
SETTLED_AFTER = 2 * max(HALF_WIDTHS) + 1
"""Frames judged after a doubtful transition that has no better rival to come."""


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


class Nominations(BaseModel, frozen=True, extra="forbid"):
    """What is not reported, but is worth a second look; below the thresholds of the detector."""

    cut_threshold: float = Field(0.55, gt=0, description="score above which a hard cut is nominated")
    gradual_threshold: float = Field(0.7, gt=0, description="score above which a dissolve is nominated")


class ColourDetector:
    """Finds hard cuts, dissolves and fades in one pass; a `ShotDetector`.

    Frames are judged once the next few are known. What is kept is the features of about two seconds of
    frames and the transitions found so far.

    Args:
        config: The thresholds of what is reported.
        nominations: Thresholds of what `take_doubtful` gives; without them it gives nothing.
    """

    def __init__(self, config: ColourDetectorConfig, nominations: Nominations | None = None) -> None:
        self._config = config
        floors = nominations or config
        self._cut_floor = min(floors.cut_threshold, config.cut_threshold)
        self._gradual_floor = min(floors.gradual_threshold, config.gradual_threshold)
        self._batch = np.zeros((_BATCH, HEIGHT, WIDTH, 3), np.uint8)
        self._waiting = 0  # frames in the batch
        self._judged = 0
        self._history = History(_HISTORY)
        self._screen = Screen(config.colour_weight, self._gradual_floor)
        self._windows: deque[list[int]] = deque()  # that may hold a dissolve, of the frames not judged yet
        self._fades = FadeFinder(config.blank_contrast, config.cut_threshold, config.colour_weight)
        self._cuts: list[int] = []  # first frame after each
        self._dissolves: list[Dissolve] = []  # doubtful ones too
        self._doubtful_cuts: list[tuple[float, int]] = []
        self._shot_first = 0  # first frame since the last cut or even tone

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return WIDTH, HEIGHT

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [36, 64, 3] RGB."""
        self._batch[self._waiting] = frame
        self._waiting += 1
        if self._waiting == _BATCH:
            self._take_in()
            self._judge_before(self._history.end - REACH)

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping."""
        if self._waiting:
            self._take_in()
        self._judge_before(self._history.end)
        self._fades.finish(self._history)
        return self._sure(0)

    @property
    def judged(self) -> int:
        """Frames before this one have been judged."""
        return self._judged

    @property
    def judged_after(self) -> int:
        """Frames pushed after one that has been judged, at most."""
        return _JUDGED_AFTER

    @property
    def settled_after(self) -> int:
        """Frames judged after a doubtful transition that has no better rival to come."""
        return SETTLED_AFTER

    def foretell(self, first: int) -> Foretold:
        """What is known already of the transitions that end after frame ``first``; later frames may change it."""
        return Foretold(self._sure(first), self._fades.waiting_since)

    def take_doubtful(self, finished: bool = False) -> list[Transition]:
        """Nominated transitions that no later frame can change; each is given once.

        Args:
            finished: After `finish`: all that are left.
        """
        end = self._judged if finished else self._judged - SETTLED_AFTER
        threshold = self._config.gradual_threshold
        gradual = [found for found in self._dissolves if found.score <= threshold and found.end_frame <= end]
        cuts = [cut for cut in self._doubtful_cuts if cut[1] <= end]
        if not gradual and not cuts:
            return []
        self._dissolves = [found for found in self._dissolves if found not in gradual]
        self._doubtful_cuts = self._doubtful_cuts[len(cuts) :]
        ranked = [
            (found.score, Transition(found.start_frame, found.end_frame, "gradual")) for found in gradual
        ]
        ranked += [(score, Transition(frame - 1, frame, "cut")) for score, frame in cuts]
        taken = self._sure(min(found.start_frame for _, found in ranked) - SETTLED_AFTER)
        kept = []
        for _, found in sorted(ranked, key=lambda each: (-each[0], each[1].start_frame)):
            if not any(overlap(found, other, margin=REACH) for other in taken):
                taken.append(found)
                kept.append(found)
        return sorted(kept, key=lambda transition: transition.start_frame)

    def _sure(self, first: int) -> list[Transition]:
        """What has been found up to now and ends after frame `first`, sorted and not overlapping."""
        fades = _ending_after(self._fades.found, first, lambda fade: fade.end_frame)
        others = [Transition(frame - 1, frame, "cut") for frame in _ending_after(self._cuts, first, int)]
        others += [
            Transition(found.start_frame, found.end_frame, "gradual")
            for found in _ending_after(self._dissolves, first, lambda dissolve: dissolve.end_frame)
            if found.score > self._config.gradual_threshold
        ]
        found = [*fades, *(each for each in others if not any(overlap(each, fade) for fade in fades))]
        return sorted(found, key=lambda transition: transition.start_frame)

    def _take_in(self) -> None:
        batch = features(self._batch[: self._waiting])
        self._waiting = 0
        self._windows.extend(self._screen.push(batch))
        self._history.extend(batch)

    def _judge_before(self, end: int) -> None:
        for frame in range(self._judged, end):
            self._judge(frame, self._windows.popleft())
        self._judged = max(self._judged, end)

    def _judge(self, frame: int, windows: list[int]) -> None:
        blank = self._fades.is_blank(self._history[frame])
        if not blank and frame > self._shot_first:
            self._seek_cut(frame)
        self._fades.push(self._history, frame, self._shot_first)
        if blank:
            self._shot_first = frame + 1
        elif windows:
            self._seek_dissolve(frame, windows)

    def _seek_cut(self, frame: int) -> None:
        config = self._config
        score = cut_score(
            self._history, frame, config.colour_weight, config.motion_weight, above=self._cut_floor
        )
        if score is None:
            return
        if score > config.cut_threshold:
            self._cuts.append(frame)
            self._shot_first = frame
        else:
            self._doubtful_cuts.append((score, frame))

    def _seek_dissolve(self, frame: int, windows: list[int]) -> None:
        first = max(self._shot_first, self._history.first)
        dissolve = best_dissolve(
            self._history, first, frame, windows, self._config.colour_weight, above=self._gradual_floor
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


def _ending_after(found: list[_Found], first: int, end: Callable[[_Found], int]) -> list[_Found]:
    """Those that end after a frame, of a list in the order of their ends."""
    return found[bisect.bisect_right(found, first, key=end) :]
