"""The best of both detectors: colour reports what it is sure of, the network decides where colour doubts."""

from collections import deque

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.device import Device
from curate.shots.colour import (
    REACH,
    SETTLED_AFTER,
    ColourDetector,
    ColourDetectorConfig,
    Nominations,
)
from curate.shots.scale import area_weights
from curate.shots.transnet import HEIGHT, MARGIN, WIDTH, WINDOW, Chances, network
from curate.shots.types import Transition, overlap

_BATCH = 16  # frames between two looks for doubts
_KEPT = 2 * WINDOW + 2 * SETTLED_AFTER + _BATCH  # small frames held for windows still to come
_CUT_REACH = 2  # frames by which the two detectors may place a cut apart


class HybridConfig(BaseModel, frozen=True, extra="forbid"):
    """What the colour detector nominates below its own thresholds, and when the network agrees."""

    nominations: Nominations = Field(
        Nominations(), description="thresholds above which, up to those of colour, the network is asked"
    )
    threshold: float = Field(
        0.5, gt=0, lt=1, description="probability above which the network confirms what is nominated"
    )


class HybridDetector:
    """The colour detector with a network for its doubtful cases; a `ShotDetector`.

    What is kept is what the colour detector keeps and the last three hundred frames.

    Args:
        config: Where to ask the network, and when to believe it.
        colour: Thresholds above which the network is not asked.
        device: Where the network runs.
    """

    def __init__(self, config: HybridConfig, colour: ColourDetectorConfig, device: Device = "cpu") -> None:
        self._threshold = config.threshold
        self._colour = ColourDetector(colour, config.nominations)
        self._judge = network(device)
        self._rows, self._columns = (
            area_weights(from_, to)
            for from_, to in zip(reversed(self._colour.analysis_size), (HEIGHT, WIDTH), strict=True)
        )
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT)
        self._end = 0
        self._seen: tuple[int, Chances] = (
            0,
            np.zeros((0, 2), np.float32),
        )  # first frame judged last, chances
        self._confirmed: list[Transition] = []
        self.windows = 0
        """Windows that the network has looked at."""

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return self._colour.analysis_size

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [36, 64, 3] RGB."""
        self._colour.push(frame)
        self._frames.append(frame)
        self._end += 1
        if self._end % _BATCH == 0:
            self._decide(self._colour.take_doubtful())

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping."""
        sure = self._colour.finish()
        self._decide(self._colour.take_doubtful(finished=True))
        confirmed = [
            each for each in self._confirmed if not any(overlap(each, other, REACH) for other in sure)
        ]
        return sorted([*sure, *confirmed], key=lambda transition: transition.start_frame)

    def _decide(self, doubtful: list[Transition]) -> None:
        for found in doubtful:
            if self._chance(found) > self._threshold:
                self._confirmed.append(found)

    def _chance(self, found: Transition) -> float:
        """How sure the network is: of a cut here or beside, or of the frames of a span on average."""
        if found.kind == "cut":
            chances = self._chances(found.start_frame - _CUT_REACH, found.end_frame + _CUT_REACH)
            return float(chances[:, 0].max())
        return float(self._chances(found.start_frame, found.end_frame)[:, 1].mean())

    def _chances(self, first: int, end: int) -> Chances:
        """Chances of frames first..end - 1, of which there are less than WINDOW - 2 * MARGIN."""
        first, end = max(first, 0), min(end, self._end)
        known, chances = self._seen
        if not known <= first < end <= known + len(chances):
            known = (first + end - WINDOW) // 2 + MARGIN
            wanted = np.arange(known - MARGIN, known - MARGIN + WINDOW)
            held = wanted.clip(self._end - len(self._frames), self._end - 1) - self._end
            chances = self._judge(self._small(np.stack([self._frames[place] for place in held])))
            chances = chances[MARGIN : WINDOW - MARGIN]
            self._seen = known, chances
            self.windows += 1
        return chances[first - known : end - known]

    def _small(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The frames in the size that the network looks at."""
        small = np.einsum("hy,nyxc,wx->nhwc", self._rows, frames, self._columns, optimize=True)
        return np.asarray(np.rint(small), np.uint8)
