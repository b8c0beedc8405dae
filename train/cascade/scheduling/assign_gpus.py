"""GPU assignment for planners that decide times only; prefers GPUs of a sample's other modules."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reelweave.train.cascade.problem import Cascade, Problem
from reelweave.train.cascade.schedule import Run

_TOGETHER_S = 1e-9  # slack within which GPUs of a finished cascade count as free


class TimedCascade(NamedTuple):
    """A cascade with a start and a degree, but without GPUs.

    Attributes:
        start_s: start in seconds.
        cascade: sample and module.
        degree: index into ``problem.degrees_K``.
    """

    start_s: float
    cascade: Cascade
    degree: int


def assign_gpus(problem: Problem, timed: Iterable[TimedCascade], gpus: Sequence[int]) -> Iterator[Run]:
    """Assign GPUs to timed cascades and yield their runs.

    The cascades must never need more GPUs at a time than exist. Then a choice always exists, since GPUs are
    identical and need not be adjacent. Each cascade takes free GPUs on which its sample's other modules ran,
    then the lowest numbers.
    """
    free, active = set(gpus), list[Run]()
    used: dict[int, tuple[int, ...]] = {}
    for start_s, cascade, k in sorted(timed):
        for run in [run for run in active if run.end_s <= start_s + _TOGETHER_S]:
            active.remove(run)
            free.update(run.gpus)
        before = used.get(cascade.sample, ())
        chosen = sorted(free, key=lambda gpu: (gpu not in before, gpu))[: int(problem.degrees_K[k])]
        end_s = start_s + float(problem.times_SMK[cascade.sample, cascade.module, k])
        run = Run(cascade, start_s, end_s, tuple(sorted(chosen)))
        free.difference_update(chosen)
        active.append(run)
        used[cascade.sample] = (*before, *chosen)
        yield run
