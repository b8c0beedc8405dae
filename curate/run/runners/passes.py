"""Pass of tasks through stages, and what it cost."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reelweave.curate.run.runners.pipeline import Kind, Stage, runner
from reelweave.curate.run.runners.replanning import Kept

Task = TypeVar("Task")


@dataclass(frozen=True)
class Pass:
    """Cost of one pass over tasks.

    Attributes:
        name: Kind of the tasks, in the plural.
        tasks: Number of tasks that went in.
        wall_s: Seconds from the first to the last task.
        seconds: Seconds that all workers spent, by stage.
        kept: Workers that stages with a model kept; none in one process.
    """

    name: str
    tasks: int
    wall_s: float
    seconds: Mapping[str, float]
    kept: Kept


def run_pass(
    name: str,
    tasks: Iterable[Task],
    stages: Sequence[Stage[Task]],
    kind: Kind,
    take: Callable[[Task], None],
) -> Pass:
    """Send tasks through stages.

    Args:
        name: Kind of the tasks, in the plural.
        tasks: The tasks; of many, some are held at a time.
        stages: The stages.
        kind: Name of the runner.
        take: Called with every task that leaves the last stage.
    """
    began = time.monotonic()
    seconds: dict[str, float] = defaultdict(float)
    count = 0
    workers = Kept()

    def count_tasks() -> Iterator[Task]:
        nonlocal count
        for task in tasks:
            count += 1
            yield task

    for done in runner(kind)(count_tasks(), stages, workers):
        for stage, spent in done.seconds.items():
            seconds[stage] += spent
        take(done.task)
    return Pass(name, count, time.monotonic() - began, seconds, workers)


def total_seconds(passes: Sequence[Pass]) -> dict[str, float]:
    """Return the seconds that all workers spent in all passes, by stage."""
    spent: dict[str, float] = defaultdict(float)
    for done in passes:
        for stage, seconds in done.seconds.items():
            spent[stage] += seconds
    return dict(spent)


def plan_notes(passes: Sequence[Pass]) -> list[dict[str, object]]:
    """Return the rate and the workers of each pass in which stages kept some, as JSON values for the report.

    ``busy`` is the share of the time for which a stage kept its workers, loading included, in which they worked.
    """
    return [
        {
            "of": done.name,
            "workers": done.kept.most,
            "rows_per_s": done.tasks / done.wall_s,
            "busy": {
                stage: min(1.0, done.seconds.get(stage, 0.0) / held_s)
                for stage, held_s in done.kept.held_s.items()
                if held_s > 0
            },
        }
        for done in passes
        if done.kept.most
    ]
