"""How many workers each stage gets, from measured rates: a pure function.

All stages of a pipeline move at the pace of the slowest, so rates are compared in one unit, sources per second;
what a stage does for one source includes all the clips the source fans out into. Workers go, one at a time, to
the slowest stage, until the machine has no room for another one there: no other split is faster, since every
worker beyond the first was given to a stage that was the slowest when it got it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curate.runners.pipeline import Pool
from loader.errors import UsageError

_START_SHARE = 0.5  # of the planned workers; a pool grows while the first rows arrive


@dataclass(frozen=True)
class Load:
    """What one stage costs.

    Attributes:
        name: of the stage.
        seconds: one worker spends on an average row, a source with all its clips or a clip.
        cpus: processors a worker occupies.
        gpus: graphics processors a worker occupies.
        memory_mb: megabytes a worker occupies.
        most: workers that can be of use, or None.
    """

    name: str
    seconds: float
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float = 0.0
    most: int | None = None


@dataclass(frozen=True)
class Machine:
    """What there is to share: of one machine or a whole cluster."""

    cpus: float
    gpus: float = 0.0
    memory_mb: float = math.inf


@dataclass(frozen=True)
class Plan:
    """Workers per stage and the pace that follows.

    Attributes:
        pools: by stage.
        rows_per_s: of the slowest stage, and so of the pipeline.
        slowest: that stage.
    """

    pools: Mapping[str, Pool]
    rows_per_s: float
    slowest: str


def balance(loads: Sequence[Load], machine: Machine) -> Plan:
    """The split of a machine among stages that makes the slowest one fastest.

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
    return Plan(pools, _rate(slowest, workers), slowest.name)


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
