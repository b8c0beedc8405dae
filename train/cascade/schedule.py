"""Schedule of one iteration: degree, GPUs, start and end of each cascade."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from reelweave.train.cascade.problem import Cascade, Module


class Run(NamedTuple):
    """Planned run of one cascade.

    Attributes:
        cascade: sample and module.
        start_s: seconds from the start of the iteration.
        end_s: seconds from the start of the iteration.
        gpus: GPU numbers, rising; as many as the degree.
    """

    cascade: Cascade
    start_s: float
    end_s: float
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Runs of every cascade of a `Problem`, each once.

    Attributes:
        runs: sorted by start, then sample and module; all ranks execute them in this order.
        gpus: number of GPUs.
    """

    runs: tuple[Run, ...]
    gpus: int

    @classmethod
    def of(cls, runs: Iterable[Run], gpus: int) -> "Schedule":
        """Sort runs into a schedule."""
        return cls(tuple(sorted(runs, key=lambda run: (run.start_s, run.cascade))), gpus)

    @cached_property
    def makespan_s(self) -> float:
        """Latest end of a cascade, in seconds."""
        return max((run.end_s for run in self.runs), default=0.0)

    @property
    def busy_s(self) -> float:
        """GPU-seconds of all cascades."""
        return sum((run.end_s - run.start_s) * len(run.gpus) for run in self.runs)

    @property
    def idle(self) -> float:
        """Idle share of all GPU time until the makespan."""
        # Rounding may leave less than nothing.
        return max(0.0, 1 - self.busy_s / (self.gpus * self.makespan_s)) if self.runs else 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Return JSON values: cascade, sample, module, start_s, end_s, gpus."""
        return [
            {
                "cascade": index,
                "sample": run.cascade.sample,
                "module": run.cascade.module.name.lower(),
                "start_s": run.start_s,
                "end_s": run.end_s,
                "gpus": list(run.gpus),
            }
            for index, run in enumerate(self.runs)
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[dict[str, Any]], gpus: int) -> "Schedule":
        """Build a schedule from `rows`."""
        return cls.of(
            (
                Run(
                    Cascade(row["sample"], Module[row["module"].upper()]),
                    row["start_s"],
                    row["end_s"],
                    tuple(row["gpus"]),
                )
                for row in rows
            ),
            gpus,
        )
