"""Which GPUs run what, for planners that only say when: as near to where a sample's other modules ran as is free."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from train.cascade.problem import Cascade, Problem
from train.cascade.schedule import Run

_TOGETHER_S = 1e-9  # what ends so little after a start leaves its GPUs to it


class Timed(NamedTuple):
    """A cascade with a time and a degree, but without GPUs.

    Attributes:
        start_s: when it starts.
        cascade: what starts.
        degree: its place in ``problem.degrees_K``.
    """

    start_s: float
    cascade: Cascade
    degree: int


def named(problem: Problem, timed: Iterable[Timed], gpus: Sequence[int]) -> Iterator[Run]:
    """The runs of cascades on GPUs of these numbers.

    At no time may cascades need more GPUs than there are; then some are always free for each, since all are alike and
    a cascade need not have neighbours. It takes those on which its sample's others ran, as far as they are free, then
    the first ones.
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
