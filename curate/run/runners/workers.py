"""Number of workers of each stage, from measured rates: a pure function.

All stages of a pipeline run at the rate of the slowest, so rates are compared in one unit, sources per
second. The cost of a source includes all its clips. Workers are added, one at a time, to the slowest stage,
until the machine has no room for another one. No other split is faster, since every worker beyond the first
was added to the stage that was the slowest at that moment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curate.run.runners.pipeline import Pool
from loader.errors import UsageError

_START_SHARE = 0.5  # of the planned workers; a pool grows while the first tasks arrive


@dataclass(frozen=True)
class Load:
    """Measured or estimated cost of one stage.

    Attributes:
        name: Name of the stage.
        seconds: Seconds of one worker for an average task, a source with all its clips or a clip.
        cpus: Processors that a worker occupies.
        gpus: GPUs that a worker occupies.
        memory_mb: Megabytes of RAM that a worker occupies.
        most: Largest useful number of workers, or None.
    """

    name: str
    seconds: float
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float = 0.0
    most: int | None = None


@dataclass(frozen=True)
class Machine:
    """Resources of one machine or of a whole cluster."""

    cpus: float
    gpus: float = 0.0
    memory_mb: float = math.inf


@dataclass(frozen=True)
class WorkerPlan:
    """Workers per stage, and the rate of the pipeline.

    Attributes:
        pools: Workers by stage.
        rows_per_s: Tasks per second of the slowest stage, and so of the pipeline.
        slowest: Name of that stage.
    """

    pools: Mapping[str, Pool]
    rows_per_s: float
    slowest: str


def balance(loads: Sequence[Load], machine: Machine) -> WorkerPlan:
    """Return the split of a machine among stages that makes the slowest one fastest.

    Raises:
        UsageError: the machine has no room for one worker of each stage.
    """
    workers = {load.name: 1 for load in loads}
    if not _fits(loads, workers, machine):
        raise UsageError(
            f"the stages {', '.join(workers)} need {_sum(loads, workers, 'cpus'):g} CPUs,"
            f" {_sum(loads, workers, 'gpus'):g} GPUs and {_sum(loads, workers, 'memory_mb'):g} MB for one worker"
            f" each; there are {machine.cpus:g}, {machine.gpus:g} and {machine.memory_mb:g}: take smaller models,"
            " lower run.worker_memory_mb, or a larger machine"
        )
    while True:
        slowest = min(loads, key=lambda load: (_rate(load, workers), load.name))
        more = {**workers, slowest.name: workers[slowest.name] + 1}
        if slowest.seconds <= 0 or more[slowest.name] > (slowest.most or math.inf):
            break
        if not _fits(loads, more, machine):
            break
        workers = more
    pools = {name: Pool(1, count, max(1, math.ceil(count * _START_SHARE))) for name, count in workers.items()}
    return WorkerPlan(pools, _rate(slowest, workers), slowest.name)


def _rate(load: Load, workers: Mapping[str, int]) -> float:
    return workers[load.name] / load.seconds if load.seconds > 0 else math.inf


def _fits(loads: Sequence[Load], workers: Mapping[str, int], machine: Machine) -> bool:
    tolerance = 1e-9  # shares such as 0.1 do not add up exactly
    return all(
        _sum(loads, workers, resource) <= getattr(machine, resource) + tolerance
        for resource in ("cpus", "gpus", "memory_mb")
    )


def _sum(loads: Sequence[Load], workers: Mapping[str, int], resource: str) -> float:
    return float(sum(getattr(load, resource) * workers[load.name] for load in loads))
