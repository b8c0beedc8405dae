"""Number of workers of each stage, planned again and again while a pipeline runs: pure functions.

All stages of a pipeline end at the same time when each has workers in proportion to the work that is left to it. Work
is what waits before a stage and what is still to come from the stages before, times the measured seconds of a row.
So rates are compared in one unit whatever a source yields, queues count, and no plan is older than its measurements.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reelweave.curate.run.runners.reservations import Resources, worker_capacity


@dataclass(frozen=True)
class Load:
    """Work that is left to one stage.

    Attributes:
        name: Name of the stage.
        seconds: Seconds that one worker would need for it.
        share: Resources that a worker occupies.
        most: Largest useful number of workers.
    """

    name: str
    seconds: float
    share: Resources
    most: int


def balance(loads: Sequence[Load], machine: Resources) -> dict[str, int]:
    """Return the workers of each stage with which the last stage to end does so earliest.

    Each stage gets one worker, whatever the machine has. Then the stage that would end last gets another one, until
    there is no room or it can use no more. No other division is faster, since every worker went to the stage that was
    the slowest at that moment.
    """
    workers = {load.name: 1 for load in loads}
    while True:
        slowest = max(loads, key=lambda load: (load.seconds / workers[load.name], load.name))
        more = {**workers, slowest.name: workers[slowest.name] + 1}
        if slowest.seconds <= 0 or more[slowest.name] > slowest.most or not _fits(loads, more, machine):
            return workers
        workers = more


def _fits(loads: Sequence[Load], workers: Mapping[str, int], machine: Resources) -> bool:
    tolerance = 1e-9  # shares such as 0.1 do not add up exactly
    return all(
        sum(getattr(load.share, resource) * workers[load.name] for load in loads)
        <= getattr(machine, resource) + tolerance
        for resource in ("cpus", "gpus", "memory_mb")
    )


@dataclass(frozen=True)
class StageState:
    """Progress, workers and measured rates of a running stage.

    Attributes:
        name: Name of the stage.
        share: Resources that a worker occupies.
        pooled: Whether it keeps workers; others take the processors that these leave.
        batch: Rows of a call.
        most: Largest number of workers it may keep; None for as many as find room.
        workers: Workers it keeps now, those that still start too.
        calls: Calls that ended.
        rows: Rows that went into them.
        yielded: Rows that came out.
        seconds: Seconds of these calls.
        longest: Seconds of the longest calls, one for each worker that was ever started: those that load its model.
        ended: Whether nothing is left to do.
    """

    name: str
    share: Resources
    pooled: bool
    batch: int = 1
    most: int | None = None
    workers: int = 0
    calls: int = 0
    rows: float = 0.0
    yielded: int = 0
    seconds: float = 0.0
    longest: tuple[float, ...] = ()
    ended: bool = False

    @property
    def row_s(self) -> float | None:
        """Seconds of a row once a worker has its model; None while no other call is known."""
        other_calls = self.calls - len(self.longest)
        if other_calls <= 0:
            return None
        return max(0.0, self.seconds - math.fsum(self.longest)) * self.calls / (other_calls * self.rows)

    @property
    def start_s(self) -> float:
        """Seconds until a new worker has done something."""
        return max(self.longest, default=0.0)


def longest_calls(longest: Sequence[float], new: int, each_s: float, workers: int) -> tuple[float, ...]:
    """Return the longest calls after further ones, as many as workers were started."""
    return tuple(heapq.nlargest(workers, [*longest, *[each_s] * min(new, workers)]))


def plan_workers(stages: Sequence[StageState], total: int, nodes: Sequence[Resources]) -> dict[str, int]:
    """Return the workers that stages should keep; stages without a plan yet are missing.

    Args:
        stages: Stages in the order of the pipeline.
        total: Rows that enter the first one.
        nodes: Resources of the nodes that are there now.
    """
    running = [stage for stage in stages if not stage.ended]
    loads = _loads(stages, total, nodes)
    if loads is None:
        return _undisputed_workers(running, total, nodes)
    machine = Resources(
        *(math.fsum(getattr(node, name) for node in nodes) for name in ("cpus", "gpus", "memory_mb"))
    )
    workers = balance(loads, machine) if loads else {}
    return {
        stage.name: _change_workers(stage, workers[stage.name], load.seconds)
        for stage, load in zip(running, loads, strict=True)
        if stage.pooled
    }


def _loads(stages: Sequence[StageState], total: int, nodes: Sequence[Resources]) -> list[Load] | None:
    """Return the work left to each stage that runs; None where one has no measured rate."""
    loads = []
    entering = float(total)
    for stage in stages:
        if stage.ended:
            entering = float(stage.yielded)
            continue
        row_s = stage.row_s
        if row_s is None:
            return None
        remaining_rows = max(0.0, entering - stage.rows)
        max_workers = _at_most(stage, math.ceil(remaining_rows / stage.batch), nodes)
        loads.append(Load(stage.name, remaining_rows * row_s, stage.share, max_workers))
        entering = stage.yielded + remaining_rows * stage.yielded / stage.rows
    return loads


def _undisputed_workers(
    stages: Sequence[StageState], total: int, nodes: Sequence[Resources]
) -> dict[str, int]:
    """Return all the workers there is room for, of a stage that is alone or alone on GPUs."""
    rivals = [stage for stage in stages if stage.share.gpus > 0] or stages
    if len(rivals) != 1 or not rivals[0].pooled:
        return {}
    useful = math.ceil(total / rivals[0].batch) if len(stages) == 1 else math.inf
    return {rivals[0].name: _at_most(rivals[0], useful, nodes)}


def _at_most(stage: StageState, useful: float, nodes: Sequence[Resources]) -> int:
    return max(
        1,
        int(min(useful, worker_capacity(stage.share, nodes), math.inf if stage.most is None else stage.most)),
    )


def _change_workers(stage: StageState, planned: int, left_s: float) -> int:
    """Return the number of workers, unchanged where a further one would hardly start before all is done."""
    if planned > stage.workers and left_s / max(1, stage.workers) < stage.start_s:
        return stage.workers
    return planned


def patience_s(stages: Sequence[StageState]) -> float:
    """Return the seconds for which a plan holds: workers that load for half a minute are not moved every second."""
    starts = (stage.start_s for stage in stages if stage.pooled and not stage.ended)
    return min(max(1.0, 2 * max(starts, default=0.0)), _LONGEST_S)


_LONGEST_S = 60.0
"""Seconds after which any plan is old."""
