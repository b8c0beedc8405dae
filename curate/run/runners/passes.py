"""Pass of tasks through stages; with models on Ray, a measured probe first decides the workers of each stage."""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from curate.run.runners.pipeline import AT_ONCE, Kind, Pool, Stage, cluster_size, operators, placed, runner
from curate.run.runners.workers import Load, Machine, WorkerPlan, balance

Task = TypeVar("Task")


@dataclass(frozen=True)
class Pass:
    """Cost of one pass over tasks.

    Attributes:
        name: Kind of the tasks, in the plural.
        tasks: Number of tasks that went in.
        wall_s: Seconds from the first to the last task.
        seconds: Seconds that all workers spent, by stage.
        plan: Workers by stage after the probe; None without models, in one process, or with few tasks.
        models: Stages whose workers keep a model.
    """

    name: str
    tasks: int
    wall_s: float
    seconds: Mapping[str, float]
    plan: WorkerPlan | None
    models: tuple[str, ...] = ()


def run_pass(
    name: str,
    tasks: Iterable[Task],
    stages: Callable[[Mapping[str, Pool]], list[Stage[Task]]],
    kind: Kind,
    take: Callable[[Task], None],
) -> Pass:
    """Send tasks through stages.

    Args:
        name: Kind of the tasks, in the plural.
        tasks: The tasks; of many, some are held at a time.
        stages: Function from pools by stage to the stages; without pools, each stage with a model has one worker.
        kind: Name of the runner.
        take: Called with every task that leaves the last stage.
    """
    began = time.monotonic()
    seconds: dict[str, float] = defaultdict(float)
    count = 0

    def counted() -> Iterator[Task]:
        nonlocal count
        for task in tasks:
            count += 1
            yield task

    def run(some: Iterable[Task], pools: Mapping[str, Pool]) -> None:
        for done in runner(kind)(some, stages(pools)):
            for stage, spent in done.seconds.items():
                seconds[stage] += spent
            take(done.task)

    rest = counted()
    left = list(itertools.islice(rest, AT_ONCE))
    models = tuple(stage.name for stage in stages({}) if stage.pool is not None) if left else ()
    plan = None
    if models and kind == "ray":
        probe, left = split_probe(left)
        run(probe, {})
        plan = _planned(stages({}), seconds, len(probe), len(left)) if left else None
    if left:
        run(_emptied(left, rest), plan.pools if plan else {})
    return Pass(name, count, time.monotonic() - began, seconds, plan, models)


def _emptied(first: list[Task], rest: Iterator[Task]) -> Iterator[Task]:
    """Yield tasks of a list, which keeps none of them, and then all others."""
    first.reverse()
    while first:
        yield first.pop()
    yield from rest


def total_seconds(passes: Sequence[Pass]) -> dict[str, float]:
    """Return the seconds that all workers spent in all passes, by stage."""
    spent: dict[str, float] = defaultdict(float)
    for done in passes:
        for stage, seconds in done.seconds.items():
            spent[stage] += seconds
    return dict(spent)


def plan_notes(passes: Sequence[Pass]) -> list[dict[str, object]]:
    """Return planned and achieved rates of each pass that had a plan, as JSON values for the report.

    ``busy`` is the share of the pass, probe and start included, in which the workers of a stage with a model worked.
    """
    return [
        {
            "of": done.name,
            "workers": {stage: pool.most for stage, pool in done.plan.pools.items()},
            "slowest": done.plan.slowest,
            "rows_per_s": done.plan.rows_per_s,
            "achieved_rows_per_s": done.tasks / done.wall_s,
            "busy": {
                stage: min(1.0, done.seconds.get(stage, 0.0) / (done.plan.pools[stage].most * done.wall_s))
                for stage in done.models
            },
        }
        for done in passes
        if done.plan is not None
    ]


def split_probe(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Return some tasks spread evenly over all, to measure the cost of each stage, and the others.

    A twentieth, at most 20; none of the others are left when all are few.
    """
    count = min(20, max(2, len(tasks) // 20))
    if len(tasks) <= 2 * count:
        return list(tasks), []
    chosen = {(2 * place + 1) * len(tasks) // (2 * count) for place in range(count)}
    return [tasks[place] for place in sorted(chosen)], [
        task for place, task in enumerate(tasks) if place not in chosen
    ]


def _planned(
    stages: Sequence[Stage[Task]], seconds: Mapping[str, float], count: int, left: int
) -> WorkerPlan:
    """Return the workers per stage for the tasks that are left, planned from the cost of the first ones.

    A task is one block, so no stage can use more workers than there are tasks, and the first no more than batches.
    """
    loads = []
    for place, one in enumerate(operators(placed(stages))):
        each = sum(seconds.get(stage.name, 0.0) for stage in one) / count
        most = left if place else math.ceil(left / one[0].batch)
        loads.append(Load(one[0].name, each, one[0].cpus, one[0].gpus, one[0].memory_mb, most))
    size = cluster_size()
    return balance(loads, Machine(size.cpus, size.gpus, size.memory_mb))
