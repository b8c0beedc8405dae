"""Schedules to place: random ones, and the best places of small ones by trying all."""

from itertools import combinations

import numpy as np

from reelweave.train.cascade.placement.levels import NOTHING, Levels, levels
from reelweave.train.cascade.placement.topology import Topology
from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule


def drawn(samples: int, gpus: int, degrees: tuple[int, ...], seed: int) -> tuple[Problem, Schedule]:
    """A problem and a valid schedule of random degrees, order and GPUs; some samples lack a VAE or a text encoder."""
    draw = np.random.default_rng(seed)
    degrees_K = np.array(degrees)
    work_SM1 = draw.lognormal([-1.0, 0.0, 1.0], 0.5, (samples, 3))[:, :, None]
    seconds_SMK = work_SM1 * (1 / degrees_K + 0.01)
    seconds_SMK[:, Module.TEXT, 1:] = np.inf
    seconds_SMK[draw.random(samples) < 0.2, Module.VAE] = np.inf
    seconds_SMK[draw.random(samples) < 0.2, Module.TEXT] = np.inf
    problem = Problem(gpus, degrees_K, seconds_SMK, np.ones_like(seconds_SMK), 1.0)
    left = draw.permutation(list(problem.cascades())).tolist()
    free, runs, now = list(range(gpus)), list[Run](), 0.0
    while left:
        for sample, module in list(left):
            k = int(draw.choice(np.flatnonzero(problem.possible_SMK[sample, module])))
            waits = module == Module.DIT and (
                any(other[0] == sample and other[1] != Module.DIT for other in left)
                or any(run.cascade.sample == sample and run.end_s > now for run in runs)
            )
            if waits or degrees[k] > len(free):
                continue
            own = sorted(draw.choice(free, degrees[k], replace=False).tolist())
            end_s = now + float(problem.times_SMK[sample, module, k])
            runs.append(Run(Cascade(sample, Module(module)), now, end_s, tuple(own)))
            free = [gpu for gpu in free if gpu not in own]
            left.remove([sample, module])
        now = min(run.end_s for run in runs if run.end_s > now)
        free = [gpu for gpu in range(gpus) if not any(gpu in run.gpus and run.end_s > now for run in runs)]
    return problem, Schedule.of(runs, gpus)


def cost(schedule: Schedule, topology: Topology) -> Levels:
    """The sum of the cascades' levels, each times its microseconds, counted anew."""
    total = NOTHING
    for number, run in enumerate(schedule.runs):
        total = _plus(
            total, _of(schedule, number, run.gpus, [other.gpus for other in schedule.runs], topology)
        )
    return total


def best_cost(schedule: Schedule, topology: Topology, known: Levels) -> Levels:
    """The least cost of all assignments of GPUs, by branch and bound.

    Args:
        schedule: its times and degrees.
        topology: with exactly as many GPUs.
        known: a cost that can be had.
    """
    every = range(schedule.gpus)
    least: dict[int, list[int]] = {}
    for run in schedule.runs:
        degree = len(run.gpus)
        if degree not in least:
            found = [levels(topology, own, ()) for own in combinations(every, degree)]
            least[degree] = [min(column) for column in zip(*found, strict=True)]
    rest = [NOTHING]
    for run in reversed(schedule.runs):
        weight = _weight(run)
        rest.append(_plus(rest[-1], Levels(*(weight * level for level in least[len(run.gpus)]))))
    rest.reverse()
    best = known
    chosen: list[tuple[int, ...]] = []

    def extend(so_far: Levels) -> None:
        nonlocal best
        number = len(chosen)
        if number == len(schedule.runs):
            best = so_far
            return
        run = schedule.runs[number]
        taken = {
            gpu
            for other, own in zip(schedule.runs, chosen, strict=False)
            if other.end_s > run.start_s + 1e-6
            for gpu in own
        }
        options = []
        for own in combinations([gpu for gpu in every if gpu not in taken], len(run.gpus)):
            options.append((_plus(so_far, _of(schedule, number, own, chosen, topology)), own))
        for total, own in sorted(options):
            if _plus(total, rest[number + 1]) >= best:
                continue
            chosen.append(own)
            extend(total)
            chosen.pop()

    extend(NOTHING)
    return best


def _of(schedule: Schedule, number: int, gpus, placed, topology: Topology) -> Levels:
    run = schedule.runs[number]
    before = [
        own
        for other, own in zip(schedule.runs, placed, strict=False)
        if run.cascade.module == Module.DIT
        and other.cascade.sample == run.cascade.sample
        and other.cascade.module != Module.DIT
    ]
    weight = _weight(run)
    return Levels(*(weight * level for level in levels(topology, sorted(gpus), before)))


def _weight(run) -> int:
    return round((run.end_s - run.start_s) * 1e6)


def _plus(one: Levels, other: Levels) -> Levels:
    return Levels(*(a + b for a, b in zip(one, other, strict=True)))
