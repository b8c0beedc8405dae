"""A plan of one iteration: with which degree each cascade runs, on which GPUs, from when to when."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from train.cascade.problem import Cascade, Module


class Run(NamedTuple):
    """One cascade in a plan.

    Attributes:
        cascade: what runs.
        start_s: when, from the start of the iteration.
        end_s: until when.
        gpus: on which, rising; as many as its degree.
    """

    cascade: Cascade
    start_s: float
    end_s: float
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Every cascade of a `Problem` once.

    Attributes:
        runs: in the order of their starts; those of one start by sample and module. All ranks run them in this order.
        gpus: that there are.
    """

    runs: tuple[Run, ...]
    gpus: int

    @classmethod
    def of(cls, runs: Iterable[Run], gpus: int) -> "Schedule":
        """Puts runs in order."""
        return cls(tuple(sorted(runs, key=lambda run: (run.start_s, run.cascade))), gpus)

    @cached_property
    def makespan_s(self) -> float:
        """When the last cascade ends."""
        return max((run.end_s for run in self.runs), default=0.0)

    @property
    def busy_s(self) -> float:
        """GPU-seconds of all cascades."""
        return sum((run.end_s - run.start_s) * len(run.gpus) for run in self.runs)

    @property
    def idle(self) -> float:
        """Share of the GPUs' time until the makespan in which they run nothing."""
        return 1 - self.busy_s / (self.gpus * self.makespan_s) if self.runs else 0.0

    def rows(self) -> list[dict[str, Any]]:
        """As JSON values: cascade, sample, module, start_s, end_s, gpus."""
        return [
            {
                "cascade": number,
                "sample": run.cascade.sample,
                "module": run.cascade.module.name.lower(),
                "start_s": run.start_s,
                "end_s": run.end_s,
                "gpus": list(run.gpus),
            }
            for number, run in enumerate(self.runs)
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[dict[str, Any]], gpus: int) -> "Schedule":
        """The inverse of `rows`."""
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
