"""Gradual transitions as runs of likely blended frames."""

from dataclasses import dataclass

from reelweave.curate.shots.colour.features import Floats
from reelweave.curate.shots.types import Transition

_GAP = 4  # maximum unlikely frames within a run
_FEWEST = 2  # minimum frames of a run; the cut networks handle shorter ones


@dataclass
class LikelyRun:
    """Run of frames that are likely blended.

    Attributes:
        score: Maximum probability in the run.
        first: First frame.
        end: One past the last frame.
        confirmed: Whether the pictures around it or inside it confirm it, once it has ended.
    """

    score: float
    first: int
    end: int
    confirmed: bool = False

    @property
    def transition(self) -> Transition:
        """Transition of the run; its last frame is the first unblended one of the incoming shot."""
        return Transition(self.first - 1, max(self.first + 1, self.end - 1), "gradual")


class RunCollector:
    """Collector of runs from the probabilities of frames.

    Args:
        above: Probability above which a frame is likely.
    """

    def __init__(self, above: float) -> None:
        self._above = above
        self._frame = 0
        self.open: LikelyRun | None = None
        """Run that may still continue."""

    def push(self, probabilities: Floats) -> list[LikelyRun]:
        """Process the probabilities of the next frames and return the runs that have ended."""
        ended = []
        for probability in probabilities.tolist():
            if probability > self._above:
                if self.open is None:
                    self.open = LikelyRun(probability, self._frame, self._frame + 1)
                self.open.end = self._frame + 1
                self.open.score = max(self.open.score, probability)
            elif self.open is not None and self._frame - self.open.end >= _GAP:
                ended.append(self.open)
                self.open = None
            self._frame += 1
        return [run for run in ended if run.first > 0 and run.end - run.first >= _FEWEST]
