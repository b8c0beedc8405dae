"""Plans of steps, made while the step before runs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from train.cascade.online.correction import Correction
from train.cascade.planners.plan import Plan
from train.cascade.problem import Problem
from train.cascade.schedule import Schedule
from train.cascade.training.problem_of import Shape


class Planned(NamedTuple):
    """What a step is to be.

    Attributes:
        plan: with GPUs as the planner counts them.
        placed: the schedule that is executed.
        problem: by the cost model, without what was measured since.
    """

    plan: Plan
    placed: Schedule
    problem: Problem


Planner = Callable[[Sequence[Shape], int, Correction], Planned]
"""The plan of a step's microbatches, given the step's number and what measured times say: a pure function, the same on
every rank."""


class _Wanted(NamedTuple):
    shapes: tuple[Shape, ...]
    step: int


class Ahead:
    """Plans in a thread. Not every rank foresees the same steps: a plan is the same, made ahead or not.

    Args:
        planner: of a step.

    Attributes:
        steps: planned since `told`.
        ahead: of them, those whose plan was begun before the step.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._thread = ThreadPoolExecutor(1, "plans")
        self._coming: tuple[_Wanted, Future[Planned]] | None = None
        self.steps = self.ahead = 0

    def begin(self, shapes: Sequence[Shape], step: int, found: Correction) -> None:
        """Begins to plan a step that comes, with what is known now."""
        wanted = _Wanted(tuple(shapes), step)
        self._coming = wanted, self._thread.submit(self._planner, *wanted, found)

    def take(self, shapes: Sequence[Shape], step: int, found: Correction) -> Planned:
        """The plan of a step that is here, on the spot where this rank has not foreseen it.

        Args:
            shapes: of the step.
            step: its number.
            found: what was known when it could have been begun.
        """
        wanted, coming = _Wanted(tuple(shapes), step), self._coming
        self._coming = None
        self.steps += 1
        if coming is not None and coming[0] == wanted:
            self.ahead += 1
            return coming[1].result()
        return self._planner(*wanted, found)

    def told(self) -> str:
        """How many plans were ready in time since the last call, in words."""
        steps, ahead = self.steps, self.ahead
        self.steps = self.ahead = 0
        return f"{ahead} of {steps} steps planned ahead"
