"""Moves of one cascade of a placed schedule to other GPUs that keep the schedule valid."""

from collections.abc import Iterable, Sequence

import numpy as np

from reelweave.train.cascade.schedule import Schedule

TOGETHER_S = 1e-6
"""Tolerated overlap of runs on a GPU in seconds, as in `check`; sums of times are not exact."""


class Board:
    """Mutable GPU assignment of every run.

    Attributes:
        runs: runs of the schedule, in order.
        gpus: GPUs of each run.
        on: indices of the runs on each GPU, rising.
    """

    def __init__(self, schedule: Schedule, gpus: Sequence[Iterable[int]]) -> None:
        self.runs = schedule.runs
        self.gpus = [set(own) for own in gpus]
        self.on: list[list[int]] = [[] for _ in range(schedule.gpus)]
        for number, own in enumerate(self.gpus):
            for gpu in own:
                self.on[gpu].append(number)
        self._start_R = np.array([run.start_s for run in schedule.runs])
        self._end_R = np.array([run.end_s for run in schedule.runs])

    def busy(self, number: int) -> set[int]:
        """Return GPUs on which other runs overlap a run in time."""
        run = self.runs[number]
        meets_R = (self._start_R < run.end_s - TOGETHER_S) & (self._end_R > run.start_s + TOGETHER_S)
        meets_R[number] = False
        return set().union(*(self.gpus[other] for other in np.flatnonzero(meets_R).tolist()))

    def move(self, number: int, wanted: Sequence[int]) -> list[tuple[int, int, list[int]]]:
        """Move a run to the wanted GPUs; conflicting runs take the GPUs that it leaves.

        Pair by pair of GPUs, overlapping runs swap along a Kempe chain, as in graph colouring. No GPU is thus
        ever used twice at a time, whatever the runs' times.

        Returns:
            The two GPUs and the runs of each exchange, for `undo`.
        """
        own = self.gpus[number]
        leaves, takes = sorted(own.difference(wanted)), [gpu for gpu in wanted if gpu not in own]
        done = []
        for here, there in zip(leaves, takes, strict=True):
            chain = self._chain(number, here, there)
            self._exchange(here, there, chain)
            done.append((here, there, chain))
        return done

    def undo(self, done: Sequence[tuple[int, int, list[int]]]) -> None:
        """Revert the exchanges of a move."""
        for here, there, chain in reversed(done):
            self._exchange(here, there, chain)

    def _chain(self, number: int, here: int, there: int) -> list[int]:
        """Return the chain of runs on two GPUs that overlap in time, connected to a run."""
        found: list[int] = []
        last_s, holds = float("-inf"), False
        for other in sorted(set(self.on[here]) ^ set(self.on[there])):
            run = self.runs[other]
            if run.start_s >= last_s - TOGETHER_S:
                if holds:
                    break
                found = []
            found.append(other)
            last_s, holds = max(last_s, run.end_s), holds or other == number
        return found

    def _exchange(self, here: int, there: int, chain: Sequence[int]) -> None:
        for number in chain:
            own = self.gpus[number]
            one, other = (here, there) if here in own else (there, here)
            own.remove(one)
            own.add(other)
        moved = set(chain)
        on_here, on_there = self.on[here], self.on[there]
        self.on[here] = sorted(
            [run for run in on_here if run not in moved] + [run for run in on_there if run in moved]
        )
        self.on[there] = sorted(
            [run for run in on_there if run not in moved] + [run for run in on_here if run in moved]
        )
