"""Waits and memory of every rank over some steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean


@dataclass(frozen=True)
class RankWaits:
    """Waits and memory of ranks [R] over consecutive steps.

    Attributes:
        steps: number of steps.
        seconds: seconds of these, without pauses.
        wait_s: seconds that each rank waited for the last one.
        last: steps in which each rank came last.
        peak_gib: peak memory of each rank's GPU; None on a CPU.
    """

    steps: int
    seconds: float
    wait_s: list[float]
    last: list[int]
    peak_gib: list[float] | None


@dataclass
class WaitSums:
    """Sums of waits until they are taken.

    Attributes:
        size: number of ranks.
    """

    size: int
    _steps: int = 0
    _seconds: float = 0.0
    _wait_R: list[float] = field(default_factory=list)
    _last_R: list[int] = field(default_factory=list)
    _peak_R: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clear()

    def add(
        self, step_s: float, wait_R: Sequence[float], slowest: int, peak_bytes_R: Sequence[float]
    ) -> None:
        """Add the waits of one step.

        Args:
            step_s: seconds of the step.
            wait_R: seconds that each rank waited.
            slowest: rank that came last.
            peak_bytes_R: peak memory of each rank; 0 on a CPU.
        """
        self._steps += 1
        self._seconds += step_s
        self._wait_R = [before + wait for before, wait in zip(self._wait_R, wait_R, strict=True)]
        self._last_R[slowest] += 1
        self._peak_R = list(map(max, self._peak_R, peak_bytes_R))

    def take(self) -> RankWaits:
        """Return the sums, which begin anew."""
        peak = [peak / 2**30 for peak in self._peak_R] if any(self._peak_R) else None
        waits = RankWaits(self._steps, self._seconds, self._wait_R, self._last_R, peak)
        self._clear()
        return waits

    def _clear(self) -> None:
        self._steps, self._seconds = 0, 0.0
        self._wait_R, self._peak_R = [0.0] * self.size, [0.0] * self.size
        self._last_R = [0] * self.size


def waits_clause(waits: RankWaits) -> str:
    """Return waits as the end of a sentence; empty for one rank."""
    if len(waits.wait_s) == 1 or not waits.seconds:
        return ""
    mean, largest = fmean(waits.wait_s) / waits.seconds, max(waits.wait_s) / waits.seconds
    slowest = waits.last.index(max(waits.last))
    return (
        f"; ranks waited {mean:.1%} of the time (rank {waits.wait_s.index(max(waits.wait_s))} {largest:.1%}),"
        f" in {waits.last[slowest]} of {sum(waits.last)} steps for rank {slowest}"
    )
