"""Workers of a pipeline that runs on Ray Data, planned again from what its stages do.

Ray Data makes one object of a callback's class for each execution, in the driver, and calls it in every turn of its
loop. Counts come from the metrics of its operators, and plans go to the bounds of their pools.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from reelweave.curate.run.runners.reservations import Resources
from reelweave.curate.run.runners.workers import StageState, longest_calls, patience_s, plan_workers


@dataclass(frozen=True)
class Kept:
    """Workers that stages kept while a pipeline ran.

    Attributes:
        most: Largest number at a time, by stage.
        held_s: Seconds of all of them together, by stage.
    """

    most: dict[str, int] = field(default_factory=dict)
    held_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """Pipeline that a callback plans for.

    Attributes:
        operators: State of each operator before it runs, in the order of the pipeline.
        total: Rows that enter the first one.
        nodes: Returns the resources of the nodes that are there.
        kept: Destination of what stages kept.
    """

    operators: Sequence[StageState]
    total: int
    nodes: Callable[[], list[Resources]]
    kept: Kept


def replanning(setup: Setup) -> "type[Replanning]":
    """Return the callback of one execution, which Ray makes without arguments."""
    return type("ReplanningOfOneRun", (Replanning,), {"setup": setup})


class Replanning:
    """Callback that resizes the pools of an execution.

    Attributes:
        setup: The pipeline.
    """

    setup: ClassVar[Setup]

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._at, self._planned_at = time.monotonic(), -math.inf

    def before_execution_starts(self, executor: Any) -> None:
        """Find the operators; Ray may have made one of several neighbours."""
        remaining = list(self.setup.operators)
        for operator in executor._topology:
            if count := operator.name.count(_OPERATOR):
                self._watched.append(_Watched(operator, _together(remaining[:count])))
                del remaining[:count]

    def on_execution_step(self, executor: Any) -> None:  # noqa: ARG002 - as Ray calls it
        """Count what was done since the last turn, and resize pools where the last plan is old."""
        now, kept_workers = time.monotonic(), self.setup.kept
        for watched in self._watched:
            watched.look()
            if watched.pool is not None:
                name, workers = watched.state.name, watched.state.workers
                kept_workers.most[name] = max(workers, kept_workers.most.get(name, 0))
                kept_workers.held_s[name] = kept_workers.held_s.get(name, 0.0) + workers * (now - self._at)
        self._at = now
        states = [watched.state for watched in self._watched]
        if now - self._planned_at >= patience_s(states):
            plan = plan_workers(states, self.setup.total, self.setup.nodes())
            for watched in self._watched:
                if watched.state.name in plan and not watched.state.ended:
                    watched.resize(plan[watched.state.name])
            self._planned_at = now

    def after_execution_succeeds(self, executor: Any) -> None:
        """Ignore the end: the callback holds nothing."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Ignore the failure, which the caller receives."""


_OPERATOR = "MapBatches("
"""Start of the name of an operator; Ray joins the names of those that it makes one of."""


class _Watched:
    """An operator of Ray Data and what is known of it."""

    def __init__(self, operator: Any, state: StageState) -> None:
        self._operator = operator
        self.state = state
        self.pool: Any = next(iter(operator.get_autoscaling_actor_pools()), None)
        self._started = 0

    def look(self) -> None:
        """Bring the state up to date."""
        counts, before = self._operator.metrics, self.state
        # A task holds its processor from when it is sent until its end is noticed. Workers have their next call with
        # them, so that they wait for neither.
        seconds = counts.task_completion_time_s if self.pool is None else counts.block_generation_time
        calls = counts.num_tasks_finished
        workers = self.pool.current_size() if self.pool is not None else 0
        self._started += max(0, workers - before.workers)
        longest = before.longest
        new = calls - before.calls
        if new and self.pool is not None:
            longest = longest_calls(longest, new, (seconds - before.seconds) / new, self._started)
        self.state = replace(
            before,
            workers=workers,
            calls=calls,
            rows=counts.rows_inputs_of_submitted_tasks * calls / max(1, counts.num_tasks_submitted),
            yielded=counts.rows_task_outputs_generated,
            seconds=seconds,
            longest=longest,
            ended=self._operator.has_completed(),
        )

    def resize(self, workers: int) -> None:
        """Bound the pool to this number of workers: Ray starts what is missing, and ends idle ones."""
        # Ray warns people of pools that want more workers than they ever got rows.
        min_workers = max(1, min(workers, self._operator.metrics.num_inputs_received))
        if (self.pool.min_size(), self.pool.max_size()) != (min_workers, workers):
            config = self.pool._config
            self.pool._config = replace(
                config, min_size=min_workers, max_size=workers, initial_size=min_workers
            )


def _together(states: Sequence[StageState]) -> StageState:
    """Return the state of neighbours that Ray made one; what they reserve is equal."""
    pools = [state for state in states if state.pooled]
    return replace((pools or list(states))[0], batch=states[0].batch)
