"""What executed cascades took: the state that corrections are worked out from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from train.cascade.problem import Module, Problem
from train.cascade.schedule import Schedule


class Measurement(NamedTuple):
    """One executed cascade.

    Attributes:
        module: that ran.
        gpus: on which, rising.
        predicted_s: by the cost model, without any correction.
        measured_s: that it took, without waiting.
    """

    module: Module
    gpus: tuple[int, ...]
    predicted_s: float
    measured_s: float


def measurements(problem: Problem, executed: Schedule) -> tuple[Measurement, ...]:
    """Of an iteration.

    Args:
        problem: of the cost model, without any correction.
        executed: the runs with the times that they took.
    """
    place = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
    return tuple(
        Measurement(
            run.cascade.module,
            run.gpus,
            float(problem.seconds_SMK[(*run.cascade, place[len(run.gpus)])]),
            run.end_s - run.start_s,
        )
        for run in executed.runs
    )


@dataclass(frozen=True)
class Window:
    """The measurements of the latest iterations, the last one last: all state that there is.

    Attributes:
        iterations: of each, its measurements.
    """

    iterations: tuple[tuple[Measurement, ...], ...] = ()

    def with_iteration(self, measured: Iterable[Measurement], most: int) -> "Window":
        """With one more, of the latest ``most``; times that are none (0, infinite) are left out."""
        kept = tuple(
            one
            for one in measured
            if 0 < one.measured_s < float("inf") and 0 < one.predicted_s < float("inf")
        )
        return Window((*self.iterations, kept)[-most:])

    def rows(self) -> list[list[list[Any]]]:
        """As JSON values."""
        return [
            [[int(one.module), list(one.gpus), one.predicted_s, one.measured_s] for one in iteration]
            for iteration in self.iterations
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[Sequence[Any]]]) -> "Window":
        """The inverse of `rows`."""
        return cls(
            tuple(
                tuple(
                    Measurement(Module(module), tuple(gpus), predicted_s, measured_s)
                    for module, gpus, predicted_s, measured_s in iteration
                )
                for iteration in rows
            )
        )
