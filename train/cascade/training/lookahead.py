"""Plan prefetch: plans the next step in a thread while the current one runs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from reelweave.train.cascade.online.settled import Learned
from reelweave.train.cascade.planners.plan import CascadePlan
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.rank_order import RankOrder
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.training.step_problem import BatchShape


class PlacedPlan(NamedTuple):
    """Plan of a step on ranks.

    Attributes:
        plan: the planner's result, with its own GPU numbers.
        schedule: schedule to execute, on ranks.
        problem: planning problem by the cost model, without online corrections.
        order: ranks of the planner's GPUs.
    """

    plan: CascadePlan
    schedule: Schedule
    problem: Problem
    order: RankOrder


Planner = Callable[[Sequence[BatchShape], int, Learned], PlacedPlan]
"""Planner of a step from its microbatches, its number and what was learned: pure, identical on every rank."""


class _Wanted(NamedTuple):
    shapes: tuple[BatchShape, ...]
    step: int


class PlanPrefetcher:
    """Planner with prefetch in a thread; ranks may prefetch unequally, since prefetched plans are no different.

    Args:
        planner: planner of one step.

    Attributes:
        steps: number of steps planned since the last `summary`.
        prefetched: number of those steps whose plan was prefetched.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._thread = ThreadPoolExecutor(1, "plans")
        self._coming: tuple[_Wanted, Future[PlacedPlan]] | None = None
        self.steps = self.prefetched = 0

    def begin(self, shapes: Sequence[BatchShape], step: int, learned: Learned) -> None:
        """Start to plan a coming step."""
        request = _Wanted(tuple(shapes), step)
        self._coming = request, self._thread.submit(self._planner, *request, learned)

    def take(self, shapes: Sequence[BatchShape], step: int, learned: Learned) -> PlacedPlan:
        """Return the prefetched plan of a step, or plan it now.

        Args:
            shapes: microbatches of the step.
            step: step number.
            learned: measured results when prefetching could have begun.
        """
        request, coming = _Wanted(tuple(shapes), step), self._coming
        self._coming = None
        self.steps += 1
        if coming is not None and coming[0] == request:
            self.prefetched += 1
            return coming[1].result()
        return self._planner(*request, learned)

    def summary(self) -> str:
        """Return the number of prefetched plans since the last call, as a log line."""
        steps, ahead = self.steps, self.prefetched
        self.steps = self.prefetched = 0
        return f"{ahead} of {steps} steps planned ahead"
