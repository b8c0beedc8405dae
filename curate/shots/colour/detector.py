"""Default shot detector: colour and structure of the picture, on a CPU, while decoding."""

import bisect
import math
from array import array
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.shots.colour.abrupt import is_abrupt
from reelweave.curate.shots.colour.calibration import score_at
from reelweave.curate.shots.colour.fades import FadeFinder
from reelweave.curate.shots.colour.features import HEIGHT, WIDTH, Floats, dissimilarity, features
from reelweave.curate.shots.colour.gradual import LikelyRun, RunCollector
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.colour.mixture import holds_mixture
from reelweave.curate.shots.colour.probabilities import CUT_REACH, GRADUAL_REACH, TransitionProbabilities
from reelweave.curate.shots.colour.steady import leads_between_still_pictures
from reelweave.curate.shots.types import Candidate, CandidateKind, KnownTransitions, Transition, overlap
from reelweave.loader.base.operations import charged
from reelweave.loader.settings import Settings

_Found = TypeVar("_Found")

_BATCH = 16  # frames per batch, to share the cost of a call
REACH = 4
"""Frames within which two changes are one; a shot of fewer frames is a flash."""

_PEAK = REACH - 1  # frames on each side among which a cut is a local maximum
_JUDGED_AFTER = _BATCH + CUT_REACH + _PEAK
_HISTORY = GRADUAL_REACH + _BATCH + 100  # a gradual transition of 100 frames, and more than a fade needs
_SHORT_RUN = 4  # maximum frames of a run that a hard cut inside may explain
_BOTH = 0.4  # probability of a cut next to a likelier one above which the frame in between is blended
_SURE_CUT = 0.8  # probability of a hard cut that overrides any run around it; its network was trained on dissolves too
_ABRUPT = 0.5  # share of the threshold above which a cut is reported whose one step makes the whole change
_CONFIRMED = 0.84  # share of the threshold above which a run is reported that the pictures confirm
_LIKELY = 0.35  # share of the threshold above which a frame extends a run
_CANDIDATE = 0.02
"""Probability of a hard cut above which it is a candidate; a run is one whatever its frames say."""
_LEAST_LIKELY = 0.25  # minimum probability of a frame in a run, for any threshold
SETTLED_AFTER = GRADUAL_REACH + 5
"""Frames analysed after a doubtful transition until no better one can replace it."""


class _Cut(NamedTuple):
    """Hard cut, or a change with one blended frame, where cuts on both sides of that frame are likely."""

    start: int
    end: int
    chance: float
    abrupt: bool = False  # whether one step makes the change, which overrides any run around it

    @property
    def transition(self) -> Transition:
        return Transition(self.start, self.end, "cut" if self.end == self.start + 1 else "gradual")


class ColourDetectorConfig(Settings):
    """Thresholds of the colour detector; docs/benchmarks/shots.md has the measurements behind the defaults."""

    cut_threshold: float = Field(
        0.4,
        gt=0,
        description="probability above which a hard cut is reported; a lower threshold finds more cuts and more false"
        " ones",
    )
    gradual_threshold: float = Field(
        0.95,
        gt=0,
        description="probability above which a frame makes a dissolve, wipe or similar transition; a lower threshold"
        " finds more transitions and more false ones",
    )
    blank_contrast: float = Field(
        3.0,
        ge=0,
        description="contrast below which a frame is blank (black, white or one tone): standard deviation of the"
        " luminance, 0 to 255",
    )
    difference_threshold: float = Field(
        0.65,
        gt=0,
        description="minimum difference of the pictures before and after a fade or another gradual transition, 0 to"
        " about 1.2",
    )


class Nominations(Settings):
    """Thresholds of doubtful transitions, below those of the detector, that the network decides."""

    cut_threshold: float = Field(0.2, gt=0, description="probability above which a hard cut is nominated")
    gradual_threshold: float = Field(
        0.4, gt=0, description="probability above which a gradual transition is nominated"
    )


class ColourDetector:
    """Detector of hard cuts, dissolves and fades in one pass; a `ShotDetector`.

    Frames are analysed once the next few are known. Memory holds the features of about two seconds of frames
    and the transitions found so far.

    Args:
        config: Thresholds of reported transitions.
        nominations: Thresholds of the transitions in `take_doubtful`, which is empty without them.
        min_confidence: Transitions that are more probable than 1 less this are reported, too; 0 adds none.
    """

    def __init__(
        self,
        config: ColourDetectorConfig,
        nominations: Nominations | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        self._config = config
        self._cut_threshold, self._run_threshold = config.cut_threshold, math.inf
        if min_confidence > 0:
            self._cut_threshold = min(config.cut_threshold, score_at("cut", 1 - min_confidence))
            self._run_threshold = score_at("gradual", 1 - min_confidence)
        floors = nominations or config
        self._cut_floor = min(floors.cut_threshold, self._cut_threshold)
        gradual_floor = min(floors.gradual_threshold, config.gradual_threshold)
        self._gradual_floor = min(gradual_floor, self._run_threshold)
        self._batch = np.zeros((_BATCH, HEIGHT, WIDTH, 3), np.uint8)
        self._waiting = 0  # frames in the batch
        self._judged = 0
        self._gradual_judged = 0
        self._history = FeatureWindow(_HISTORY)
        self._chances = TransitionProbabilities()
        self._runs = RunCollector(max(_LIKELY * gradual_floor, _LEAST_LIKELY))
        self._fades = FadeFinder(config.blank_contrast, config.difference_threshold)
        self._blanks = array("q")  # blank frames
        self._chance = np.zeros(
            _PEAK, np.float32
        )  # cut probabilities, from _PEAK frames before the next one to analyse
        self._cuts: list[_Cut] = []  # reported and doubtful ones
        self._dissolves: list[LikelyRun] = []  # reported and doubtful ones
        self._shot_first = 0  # first frame after the last cut or blank frame
        self._candidates: list[Candidate] = []  # cuts and runs, reported or not

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`."""
        return WIDTH, HEIGHT

    @charged("shots: detector")
    def push(self, frame: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, [36, 64, 3] RGB."""
        self._batch[self._waiting] = frame
        self._waiting += 1
        if self._waiting == _BATCH:
            self._take_in()
            self._judge(self._history.end - CUT_REACH, self._history.end - GRADUAL_REACH)

    @charged("shots: detector")
    def finish(self) -> list[Transition]:
        """Return all transitions, sorted and disjoint."""
        if self._waiting:
            self._take_in()
        self._chances.finish()
        self._judge(self._history.end, self._history.end, finished=True)
        self._fades.finish(self._history)
        return self._sure(0)

    @property
    def judged(self) -> int:
        return self._judged

    @property
    def settled(self) -> int:
        settled, since, run = (
            min(self._judged, self._gradual_judged),
            self._fades.waiting_since,
            self._runs.open,
        )
        if since is not None:
            settled = min(settled, since + 1)
        return settled if run is None else max(0, min(settled, run.transition.start_frame + 1))

    @property
    def judged_after(self) -> int:
        return _JUDGED_AFTER

    @property
    def settled_after(self) -> int:
        return SETTLED_AFTER

    def known_transitions(self, first: int) -> KnownTransitions:
        since = self._fades.waiting_since
        run = self._runs.open
        if since is None and run is not None and self._is_sure(run):
            since = run.transition.start_frame
        return KnownTransitions(self._sure(first), since)

    def candidates(self) -> list[Candidate]:
        """Return, after `finish`, all changes that were weighed, of which several may lie at one place."""
        return [*self._candidates, *(Candidate(fade, "fade", 1.0) for fade in self._fades.found)]

    def take_doubtful(self, finished: bool = False) -> list[Transition]:
        """Return nominated transitions that no later frame can change; each is returned once.

        Args:
            finished: True after `finish`, to return all that are left.
        """
        # Candidates that are settled, with their scores.
        end = self._judged if finished else self._judged - SETTLED_AFTER
        ranked = [
            (run.score, run.transition)
            for run in self._dissolves
            if not self._is_sure(run) and run.transition.end_frame <= end
        ] + [
            (cut.chance, cut.transition)
            for cut in self._cuts
            if not self._is_sure_cut(cut) and cut.end <= end
        ]
        if not ranked:
            return []
        # They are returned once: only sure and unsettled ones stay.
        self._dissolves = [
            run for run in self._dissolves if self._is_sure(run) or run.transition.end_frame > end
        ]
        self._cuts = [cut for cut in self._cuts if self._is_sure_cut(cut) or cut.end > end]
        # Of candidates that overlap, the better one is asked about, and none beside a sure transition.
        accepted = self._sure(min(transition.start_frame for _, transition in ranked) - SETTLED_AFTER)
        doubtful = []
        for _, candidate in sorted(ranked, key=lambda each: (-each[0], each[1].start_frame)):
            if not any(overlap(candidate, other, margin=REACH) for other in accepted):
                accepted.append(candidate)
                doubtful.append(candidate)
        return sorted(doubtful, key=lambda transition: transition.start_frame)

    def _sure(self, first: int) -> list[Transition]:
        """Return the reported transitions so far that end after frame `first`, sorted and disjoint."""
        fades = _ending_after(self._fades.found, first, lambda fade: fade.end_frame)
        cuts_and_dissolves = [
            cut.transition
            for cut in _ending_after(self._cuts, first, lambda cut: cut.end)
            if self._is_sure_cut(cut)
        ]
        cuts_and_dissolves += [
            run.transition
            for run in _ending_after(self._dissolves, first, lambda run: run.transition.end_frame)
            if self._is_sure(run)
        ]
        reported = [
            *fades,
            *(each for each in cuts_and_dissolves if not any(overlap(each, fade) for fade in fades)),
        ]
        return sorted(reported, key=lambda transition: transition.start_frame)

    def _take_in(self) -> None:
        batch = features(self._batch[: self._waiting])
        self._waiting = 0
        self._history.extend(batch)
        self._chances.push(batch)

    def _judge(self, cuts_end: int, gradual_end: int, finished: bool = False) -> None:
        """Decide cuts up to frame `cuts_end` minus the peak's reach, and gradual transitions up to `gradual_end`."""
        chance_end = self._judged + len(self._chance) - _PEAK
        self._chance = np.concatenate([self._chance, self._chances.cuts(chance_end, cuts_end)])
        if finished:
            self._chance = np.concatenate([self._chance, np.zeros(_PEAK, np.float32)])
        peaks = range(_PEAK, len(self._chance) - _PEAK)
        for peak in peaks:
            self._judge_frame(self._judged, self._chance[peak - _PEAK : peak + _PEAK + 1])
            self._judged += 1
        self._chance = self._chance[len(peaks) :]
        gradual_end = max(gradual_end, self._gradual_judged)
        for run in self._runs.push(self._chances.gradual(self._gradual_judged, gradual_end)):
            self._keep(run)
        self._gradual_judged = gradual_end

    def _judge_frame(self, frame: int, probabilities: Floats) -> None:
        """Decide whether a cut is before a frame, by the probabilities around it."""
        # A cut is a peak of the probability, of two pictures that both show something.
        blank = self._fades.is_blank(self._history[frame])
        probability = float(probabilities[_PEAK])
        if (
            not blank
            and frame > self._shot_first
            and probability > min(self._cut_floor, _ABRUPT * self._config.cut_threshold, _CANDIDATE)
            and probabilities.argmax() == _PEAK
        ):
            # A neighbour that is probable, too, belongs to the cut, whose place is then a range of frames.
            earlier, later = (float(each) > _BOTH for each in probabilities[[_PEAK - 1, _PEAK + 1]])
            cut = _Cut(
                frame - 1 - earlier,
                frame + later,
                probability,
                probability > _ABRUPT * self._config.cut_threshold and is_abrupt(self._history, frame),
            )
            if probability > self._cut_floor or cut.abrupt:
                self._cuts.append(cut)
            kind: CandidateKind = "abrupt" if cut.abrupt else "cut"
            self._candidates.append(Candidate(cut.transition, kind, probability))
            if self._is_sure_cut(cut):
                self._shot_first = frame
        # Fades are followed in any case; blank pictures end a shot.
        self._fades.push(self._history, frame, self._shot_first)
        if blank:
            self._blanks.append(frame)
            self._shot_first = frame + 1

    def _keep(self, run: LikelyRun) -> None:
        """Decide between a run and the cuts inside it."""
        change = run.transition
        is_mixed = holds_mixture(self._history, change)
        run.confirmed = run.score > _CONFIRMED * self._config.gradual_threshold and (
            leads_between_still_pictures(self._history, change) or is_mixed
        )
        if self._blank_within(run) or self._alike_beyond(run):
            return
        self._candidates.append(Candidate(change, "dissolve" if is_mixed else "gradual", run.score))
        if run.score <= self._gradual_floor and not self._is_sure(run):
            return
        inside = [cut for cut in self._cuts if run.first - 1 <= cut.end <= run.end]
        if any(cut.abrupt for cut in inside):
            return
        surest = max((cut.chance for cut in inside), default=0.0)
        needed = run.score if run.end - run.first <= _SHORT_RUN else _SURE_CUT
        if surest > self._cut_threshold and (not self._is_sure(run) or surest > needed):
            return
        self._cuts = [cut for cut in self._cuts if cut not in inside]
        self._dissolves.append(run)

    def _is_sure_cut(self, cut: _Cut) -> bool:
        """Return True when a cut is reported."""
        return cut.abrupt or cut.chance > self._cut_threshold

    def _is_sure(self, run: LikelyRun) -> bool:
        """Return True when a run is reported; a short run has fewer frames, so a very likely one is rarer."""
        short = run.end - run.first <= _SHORT_RUN
        needed = min(self._run_threshold, self._config.gradual_threshold ** (4 if short else 1))
        return run.confirmed or run.score > needed

    def _alike_beyond(self, run: LikelyRun) -> bool:
        """Return True when the pictures before and after a run are alike: a flash or a passing object."""
        before, after = run.transition.start_frame - 1, run.transition.end_frame + 1
        pictures = (
            self._history[max(before, self._history.first)],
            self._history[min(after, self._history.end - 1)],
        )
        return dissimilarity(*pictures) <= self._config.difference_threshold

    def _blank_within(self, run: LikelyRun) -> bool:
        """Return True when a blank frame is in the run: `FadeFinder` decides on fades."""
        index = bisect.bisect_left(self._blanks, run.first - 1)
        return index < len(self._blanks) and self._blanks[index] < run.end


def _ending_after(candidates: list[_Found], first: int, end: Callable[[_Found], int]) -> list[_Found]:
    """Return the items that end after a frame, from a list sorted by end."""
    return candidates[bisect.bisect_right(candidates, first, key=end) :]
