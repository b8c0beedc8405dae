"""Measurements of executed cascades, the input of corrections."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule


class Measurement(NamedTuple):
    """Predicted and measured time of one executed cascade.

    Attributes:
        module: executed module.
        gpus: GPUs, rising.
        predicted_s: seconds by the cost model, without correction.
        measured_s: compute seconds, without waiting.
    """

    module: Module
    gpus: tuple[int, ...]
    predicted_s: float
    measured_s: float


def measurements(problem: Problem, executed: Schedule) -> tuple[Measurement, ...]:
    """Return the measurements of an iteration.

    Args:
        problem: planning problem by the cost model, without correction.
        executed: schedule with measured times.
    """
    degree_index = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
    return tuple(
        Measurement(
            run.cascade.module,
            run.gpus,
            float(problem.seconds_SMK[(*run.cascade, degree_index[len(run.gpus)])]),
            run.end_s - run.start_s,
        )
        for run in executed.runs
    )


@dataclass(frozen=True)
class MeasurementWindow:
    """Measurements of the latest iterations, newest last; the only state of corrections.

    Attributes:
        iterations: measurements of each iteration.
    """

    iterations: tuple[tuple[Measurement, ...], ...] = ()

    def with_iteration(self, measured: Iterable[Measurement], max_iterations: int) -> "MeasurementWindow":
        """Append an iteration and keep the latest ``max_iterations``; drops zero and infinite times."""
        valid = tuple(
            measurement
            for measurement in measured
            if 0 < measurement.measured_s < float("inf") and 0 < measurement.predicted_s < float("inf")
        )
        return MeasurementWindow((*self.iterations, valid)[-max_iterations:])

    def rows(self) -> list[list[list[Any]]]:
        """Return the window as JSON values."""
        return [
            [
                [
                    int(measurement.module),
                    list(measurement.gpus),
                    measurement.predicted_s,
                    measurement.measured_s,
                ]
                for measurement in iteration
            ]
            for iteration in self.iterations
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[Sequence[Any]]]) -> "MeasurementWindow":
        """Build a window from `rows`."""
        return cls(
            tuple(
                tuple(
                    Measurement(Module(module), tuple(gpus), predicted_s, measured_s)
                    for module, gpus, predicted_s, measured_s in iteration
                )
                for iteration in rows
            )
        )
