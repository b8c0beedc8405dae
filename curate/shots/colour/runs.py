"""Gradual transitions: runs of frames that are likely mixed."""

from dataclasses import dataclass

from curate.shots.colour.features import Floats
from curate.shots.types import Transition

_GAP = 4  # unlikely frames that do not end a run
_FEWEST = 2  # frames of a run; a shorter one is a matter for hard cuts


@dataclass
class Run:
    """A run of likely frames.

    Attributes:
        score: Highest chance in it.
        first: Its first frame.
        end: One past its last frame.
    """

    score: float
    first: int
    end: int

    @property
    def transition(self) -> Transition:
        """The run as a transition; its last frame is the first untouched one of the incoming shot."""
        return Transition(self.first - 1, max(self.first + 1, self.end - 1), "gradual")


class Runs:
    """Collects the runs as the chances come.

    Args:
        above: Chance above which a frame is likely.
    """

    def __init__(self, above: float) -> None:
        self._above = above
        self._frame = 0
        self.open: Run | None = None
        """The run that may still go on."""

    def push(self, chances: Floats) -> list[Run]:
        """Take the chances of the next frames; the runs that have ended."""
        ended = []
        for chance in chances.tolist():
            if chance > self._above:
                if self.open is None:
                    self.open = Run(chance, self._frame, self._frame + 1)
                self.open.end = self._frame + 1
                self.open.score = max(self.open.score, chance)
            elif self.open is not None and self._frame - self.open.end >= _GAP:
                ended.append(self.open)
                self.open = None
            self._frame += 1
        return [run for run in ended if run.first > 0 and run.end - run.first >= _FEWEST]
