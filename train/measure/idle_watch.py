"""Watch over the waits of a run's first steps, and what would shorten them."""

from collections import Counter
from collections.abc import Sequence

from reelweave.train.measure.step_times import StepTimes

IDLE_SHARE = 0.05
"""Share of the time from which waiting is named."""
WARM_UP, STEPS = 10, 50
"""First steps, which compile and load, and those that are watched behind them."""
_SLOW_SHARE, _SLOW_FACTOR = 0.5, 1.5
"""Share of the steps in which one slow rank comes last, and how many times its fair share that is at least."""


class IdleWatch:
    """Watch that names the waits of ranks once, and the keys that shorten them.

    Args:
        ranks: number of ranks.
        remedies: keys to set where steps are uneven, each with what it does.
    """

    def __init__(self, ranks: int, remedies: Sequence[str]) -> None:
        self._ranks, self._remedies = ranks, remedies
        self._count, self._step_s, self._wait_s = 0, 0.0, 0.0
        self._last: Counter[int] = Counter()

    def add(self, times: StepTimes) -> str | None:
        """Add a step; return a sentence behind the last one that is watched, if ranks waited much.

        Args:
            times: times of the step over all ranks.
        """
        self._count += 1
        if self._ranks == 1 or not WARM_UP < self._count <= WARM_UP + STEPS:
            return None
        self._step_s += times.step_s
        self._wait_s += times.wait_s or 0.0
        if times.slowest_rank is not None:
            self._last[times.slowest_rank] += 1
        if self._count < WARM_UP + STEPS or self._wait_s < IDLE_SHARE * self._step_s:
            return None
        [(rank, steps)] = self._last.most_common(1)
        waited = f"ranks waited {self._wait_s / self._step_s:.1%} of the time in {STEPS} steps"
        if steps >= max(_SLOW_SHARE, _SLOW_FACTOR / self._ranks) * STEPS:
            return f"{waited}, in {steps} of them for rank {rank}: look at its machine, disk and network"
        return f"{waited}, for different ranks. What helps: {'; '.join(self._remedies)}"
