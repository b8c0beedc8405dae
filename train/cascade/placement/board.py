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
        self.gpus = [set(run_gpus) for run_gpus in gpus]
        self.on: list[list[int]] = [[] for _ in range(schedule.gpus)]
        for run_index, run_gpus in enumerate(self.gpus):
            for gpu in run_gpus:
                self.on[gpu].append(run_index)
        self._start_R = np.array([run.start_s for run in schedule.runs])
        self._end_R = np.array([run.end_s for run in schedule.runs])

    def busy(self, run_index: int) -> set[int]:
        """Return GPUs on which other runs overlap a run in time."""
        run = self.runs[run_index]
        meets_R = (self._start_R < run.end_s - TOGETHER_S) & (self._end_R > run.start_s + TOGETHER_S)
        meets_R[run_index] = False
        return set().union(*(self.gpus[other] for other in np.flatnonzero(meets_R).tolist()))

    def move(self, run_index: int, targets: Sequence[int]) -> list[tuple[int, int, list[int]]]:
        """Move a run to the wanted GPUs; conflicting runs take the GPUs that it leaves.

        Pair by pair of GPUs, overlapping runs swap along a Kempe chain, as in graph colouring. No GPU is thus
        ever used twice at a time, whatever the runs' times.

        Returns:
            The two GPUs and the runs of each exchange, for `undo`.
        """
        run_gpus = self.gpus[run_index]
        leaves, takes = sorted(run_gpus.difference(targets)), [gpu for gpu in targets if gpu not in run_gpus]
        done = []
        for old_gpu, new_gpu in zip(leaves, takes, strict=True):
            chain = self._chain(run_index, old_gpu, new_gpu)
            self._exchange(old_gpu, new_gpu, chain)
            done.append((old_gpu, new_gpu, chain))
        return done

    def undo(self, done: Sequence[tuple[int, int, list[int]]]) -> None:
        """Revert the exchanges of a move."""
        for old_gpu, new_gpu, chain in reversed(done):
            self._exchange(old_gpu, new_gpu, chain)

    def _chain(self, run_index: int, old_gpu: int, new_gpu: int) -> list[int]:
        """Return the chain of runs on two GPUs that overlap in time, connected to a run."""
        chain: list[int] = []
        last_s, holds = float("-inf"), False
        for other in sorted(set(self.on[old_gpu]) ^ set(self.on[new_gpu])):
            run = self.runs[other]
            if run.start_s >= last_s - TOGETHER_S:
                if holds:
                    break
                chain = []
            chain.append(other)
            last_s, holds = max(last_s, run.end_s), holds or other == run_index
        return chain

    def _exchange(self, old_gpu: int, new_gpu: int, chain: Sequence[int]) -> None:
        for run_index in chain:
            run_gpus = self.gpus[run_index]
            freed, other = (old_gpu, new_gpu) if old_gpu in run_gpus else (new_gpu, old_gpu)
            run_gpus.remove(freed)
            run_gpus.add(other)
        moved = set(chain)
        on_here, on_there = self.on[old_gpu], self.on[new_gpu]
        self.on[old_gpu] = sorted(
            [run for run in on_here if run not in moved] + [run for run in on_there if run in moved]
        )
        self.on[new_gpu] = sorted(
            [run for run in on_there if run not in moved] + [run for run in on_here if run in moved]
        )
