"""Hybrid of both detectors: colour reports confident transitions, and the network decides doubtful ones."""

from collections import deque

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.models.device import Device
from reelweave.curate.shots.colour.detector import (
    REACH,
    SETTLED_AFTER,
    ColourDetector,
    ColourDetectorConfig,
    Nominations,
)
from reelweave.curate.shots.scale import area_weights
from reelweave.curate.shots.transnet import (
    HEIGHT,
    MARGIN,
    WIDTH,
    WINDOW,
    Probabilities,
    TransNetConfig,
    network,
    transitions,
)
from reelweave.curate.shots.types import Candidate, Transition, overlap
from reelweave.loader.base.operations import charged
from reelweave.loader.settings import Settings

_BATCH = 16  # frames between two collections of nominations
_KEPT = 2 * WINDOW + 2 * SETTLED_AFTER + _BATCH  # frames buffered for later windows
_CUT_REACH = 2  # frames by which the two detectors may disagree on the place of a cut
_AROUND = 8  # context frames around a nomination that a cached window must cover


class HybridConfig(Settings):
    """Nominations by the colour detector below its own thresholds, and their confirmation by the network."""

    nominations: Nominations = Field(
        Nominations(), description="thresholds above which, and up to those of colour, the network decides"
    )
    threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="probability above which the network confirms a nominated transition",
    )


class HybridDetector:
    """Colour detector with a network for its doubtful transitions; a `ShotDetector`.

    Memory holds the state of the colour detector and the last three hundred frames.

    Args:
        config: Thresholds of nominations and of the network.
        colour: Thresholds above which the colour detector decides alone.
        device: Device of the network.
        min_confidence: As of `ColourDetector`.
    """

    def __init__(
        self,
        config: HybridConfig,
        colour: ColourDetectorConfig,
        device: Device = "cpu",
        min_confidence: float = 0.0,
    ) -> None:
        self._believed = TransNetConfig(threshold=config.threshold)
        self._colour = ColourDetector(colour, config.nominations, min_confidence)
        self._judge = network(device)
        self._rows, self._columns = (
            area_weights(from_, to)
            for from_, to in zip(reversed(self._colour.analysis_size), (HEIGHT, WIDTH), strict=True)
        )
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT)
        self._end = 0
        self._seen: tuple[int, Probabilities] = (
            0,
            np.zeros((0, 2), np.float32),
        )  # first frame and output of the last window
        self._confirmed: list[Transition] = []
        self.windows = 0
        """Number of windows that the network has processed."""

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`."""
        return self._colour.analysis_size

    @charged("shots: detector")
    def push(self, frame: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, [36, 64, 3] RGB."""
        self._colour.push(frame)
        self._frames.append(frame)
        self._end += 1
        if self._end % _BATCH == 0:
            self._decide(self._colour.take_doubtful())

    @charged("shots: detector")
    def finish(self) -> list[Transition]:
        """Return all transitions, sorted and disjoint."""
        sure = self._colour.finish()
        self._decide(self._colour.take_doubtful(finished=True))
        confirmed = [each for each in self._confirmed if not _near(each, sure)]
        return sorted([*sure, *confirmed], key=lambda transition: transition.start_frame)

    def candidates(self) -> list[Candidate]:
        """Return what colour weighed; its probabilities are those before the network was asked."""
        return self._colour.candidates()

    def _decide(self, doubtful: list[Transition]) -> None:
        for nomination in doubtful:
            predicted = self._seen_at(nomination)
            if nomination.kind == "cut" or any(each.kind == "gradual" for each in predicted):
                predicted = [nomination] if predicted else []  # edges of the colour detector are more precise
            self._confirmed += [each for each in predicted if not _near(each, self._confirmed)]

    def _seen_at(self, nomination: Transition) -> list[Transition]:
        """Return the network's transitions that overlap a nomination."""
        start, probabilities = self._judged_around(nomination.start_frame, nomination.end_frame)
        predicted = [
            Transition(each.start_frame + start, each.end_frame + start, each.kind)
            for each in transitions(probabilities, self._believed)
        ]
        return [each for each in predicted if overlap(each, nomination, _CUT_REACH)]

    def _judged_around(self, first: int, end: int) -> tuple[int, Probabilities]:
        """Return the first frame and the outputs of a window around frames first..end - 1.

        A nomination longer than the window gets one around its middle.
        """
        window_start, probabilities = self._seen
        if not window_start <= max(first - _AROUND, 0) < end + _AROUND <= window_start + len(probabilities):
            window_start = (first + end - WINDOW) // 2 + MARGIN
            window_frames = np.arange(window_start - MARGIN, window_start - MARGIN + WINDOW)
            held = window_frames.clip(self._end - len(self._frames), self._end - 1) - self._end
            probabilities = self._judge(self._small(np.stack([self._frames[index] for index in held])))
            probabilities = probabilities[MARGIN : WINDOW - MARGIN]
            self._seen = window_start, probabilities
            self.windows += 1
        start = max(window_start, 0)
        ended = np.pad(probabilities, ((0, 1), (0, 0)))  # a run that continues past the window ends there
        return start, ended[
            start - window_start : self._end - window_start
        ]  # without frames past the end of the video

    def _small(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Scale frames to the input size of the network."""
        small = np.einsum("hy,nyxc,wx->nhwc", self._rows, frames, self._columns, optimize=True)
        return np.asarray(np.rint(small), np.uint8)


def _near(transition: Transition, other_transitions: list[Transition]) -> bool:
    return any(overlap(transition, other, REACH) for other in other_transitions)
