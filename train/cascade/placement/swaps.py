"""Moving one cascade of a placed schedule to other GPUs, such that the schedule stays valid."""

from collections.abc import Iterable, Sequence

import numpy as np

from train.cascade.schedule import Schedule

TOGETHER_S = 1e-6
"""Runs that share a GPU may overlap so much, as `check` has it: sums of times are not exact."""


class Board:
    """The GPUs of every run, to be changed.

    Attributes:
        runs: of the schedule, in its order.
        gpus: of each run.
        on: of each GPU, the numbers of its runs, rising.
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
        """GPUs on which others run while a run does."""
        run = self.runs[number]
        meets_R = (self._start_R < run.end_s - TOGETHER_S) & (self._end_R > run.start_s + TOGETHER_S)
        meets_R[number] = False
        return set().union(*(self.gpus[other] for other in np.flatnonzero(meets_R).tolist()))

    def move(self, number: int, wanted: Sequence[int]) -> list[tuple[int, int, list[int]]]:
        """Gives a run the GPUs that it wants, and what is in its way there the ones that it leaves.

        GPU for GPU, runs exchange the two as far as one pushes away the next: a chain of Kempe's, as in the colouring
        of graphs. So no GPU is ever used twice at a time, whatever the runs' times.

        Returns:
            For `undo`: the two GPUs and the runs of each exchange.
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
        """Takes a move back."""
        for here, there, chain in reversed(done):
            self._exchange(here, there, chain)

    def _chain(self, number: int, here: int, there: int) -> list[int]:
        """The runs on one of two GPUs that overlap in time, from one to the next, with a run."""
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
