"""A pass of rows through stages; with models on Ray, a measured probe first decides the workers of each stage."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from curate.records import Row
from curate.runners.pipeline import TIMING, Pool, Stage, cluster_size, placed, runner, tasks
from curate.runners.workers import Load, Machine, Plan, balance


@dataclass(frozen=True)
class Pass:
    """Cost of a pass.

    Attributes:
        name: what the rows are, in the plural.
        rows: number of rows that went in.
        wall_s: seconds from the first to the last row.
        seconds: seconds all workers spent, by stage.
        plan: workers by stage after the probe; None without models, on one process, or with few rows.
    """

    name: str
    rows: int
    wall_s: float
    seconds: Mapping[str, float]
    plan: Plan | None


def run_pass(
    name: str,
    rows: Sequence[Row],
    stages: Callable[[Mapping[str, Pool]], list[Stage]],
    kind: Literal["ray", "sequential"],
    take: Callable[[Row], None],
) -> Pass:
    """Send rows through stages.

    Args:
        name: what the rows are, in the plural.
        rows: JSON values.
        stages: from pools by stage to the stages; without pools, each stage with a model has one worker.
        kind: name of the runner.
        take: called with every row that leaves the last stage.
    """
    began = time.monotonic()
    seconds: dict[str, float] = defaultdict(float)

    def run(some: Sequence[Row], pools: Mapping[str, Pool]) -> None:
        for row in runner(kind)(some, stages(pools)) if some else ():
            for stage, spent in row.get(TIMING, {}).items():
                seconds[stage] += spent
            take(row)

    plan, left = None, list(rows)
    if rows and kind == "ray" and any(stage.pool is not None for stage in stages({})):
        probe, left = split_probe(rows)
        run(probe, {})
        plan = _planned(stages({}), seconds, len(probe)) if left else None
    run(left, plan.pools if plan else {})
    return Pass(name, len(rows), time.monotonic() - began, seconds, plan)


def total_seconds(passes: Sequence[Pass]) -> dict[str, float]:
    """Seconds that all workers spent in all passes, by stage."""
    spent: dict[str, float] = defaultdict(float)
    for done in passes:
        for stage, seconds in done.seconds.items():
            spent[stage] += seconds
    return dict(spent)


def plan_notes(passes: Sequence[Pass]) -> list[Row]:
    """The plan of each pass that had one against what was achieved, for the report."""
    return [
        {
            "of": done.name,
            "workers": {stage: pool.most for stage, pool in done.plan.pools.items()},
            "slowest": done.plan.slowest,
            "rows_per_s": done.plan.rows_per_s,
            "achieved_rows_per_s": done.rows / done.wall_s,
        }
        for done in passes
        if done.plan is not None
    ]


def split_probe(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Some rows spread evenly over all, to measure what each stage costs, and the others.

    A twentieth, at most 20; none of the others are left when all are few.
    """
    count = min(20, max(2, len(rows) // 20))
    if len(rows) <= 2 * count:
        return list(rows), []
    chosen = {(2 * place + 1) * len(rows) // (2 * count) for place in range(count)}
    return [rows[place] for place in sorted(chosen)], [
        row for place, row in enumerate(rows) if place not in chosen
    ]


def _planned(stages: Sequence[Stage], seconds: Mapping[str, float], rows: int) -> Plan:
    """Workers per stage from what the first rows cost."""
    loads = []
    for task in tasks(placed(stages)):
        each = sum(seconds.get(stage.name, 0.0) for stage in task) / rows
        loads.append(Load(task[0].name, each, task[0].cpus, task[0].gpus, task[0].memory_mb))
    size = cluster_size()
    return balance(loads, Machine(size.cpus, size.gpus, size.memory_mb))
