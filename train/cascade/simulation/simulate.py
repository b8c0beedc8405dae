"""Simulated execution of a placed schedule: event-driven, with times that differ from the plan."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import Floats
from reelweave.loader.errors import RunError
from reelweave.loader.settings import Settings
from reelweave.train.cascade.placement.communication import Communication
from reelweave.train.cascade.placement.mapper import needs
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Run, Schedule


class Noise(Settings):
    """Deviation of execution times from planned ones."""

    sigma: float = Field(0.05, ge=0, description="standard deviation of the logarithm of each cascade's time")
    slow: dict[int, float] = Field(
        {}, description="slowdown of each straggler; a cascade waits for its slowest GPU"
    )

    def factors(self, schedule: Schedule, draw: np.random.Generator) -> Floats:
        """Draw the time factor of each run, float64 [R]; mean 1 without stragglers."""
        noise_R = draw.lognormal(-(self.sigma**2) / 2, self.sigma, len(schedule.runs))
        slow_R = [max(self.slow.get(gpu, 1.0) for gpu in run.gpus) for run in schedule.runs]
        return np.asarray(noise_R * slow_R)


Orders = Sequence[Sequence[int]]
"""Indices of each GPU's runs, in its execution order."""


def orders(schedule: Schedule) -> list[list[int]]:
    """Return the schedule's global order, GPU by GPU."""
    gpu_orders: list[list[int]] = [[] for _ in range(schedule.gpus)]
    for run_index, run in enumerate(schedule.runs):
        for gpu in run.gpus:
            gpu_orders[gpu].append(run_index)
    return gpu_orders


def execute(
    schedule: Schedule,
    factors_R: Floats | None = None,
    communication: Communication | None = None,
    on: Orders | None = None,
    time_triggered: bool = False,
) -> Schedule:
    """Simulate a schedule and return the actual times.

    A cascade starts once all its GPUs have reached it and its inputs have arrived. If all GPUs follow one
    total order, the simulation ends. The first remaining cascade in that order is next on each of its GPUs,
    and its inputs precede it.

    Args:
        schedule: planned schedule.
        factors_R: multiplier of each run's planned time.
        communication: communication cost of the placement.
        on: order of each GPU; None: the schedule's.
        time_triggered: start nothing before its planned time, as an executor of the timeline itself would.

    Returns:
        The same cascades on the same GPUs, with simulated times.

    Raises:
        RunError: the GPUs deadlock; names a GPU whose order is not the schedule's.
    """
    runs, queues = schedule.runs, on if on is not None else orders(schedule)
    # Actual times: planned ones, with what the placement costs and noise.
    seconds_R = np.array([run.end_s - run.start_s for run in runs])
    if communication:
        seconds_R = np.maximum(seconds_R + communication.lost_R, 0.0)
    if factors_R is not None:
        seconds_R = seconds_R * factors_R
    delay_s = (
        {(transfer.giver, transfer.taker): transfer.seconds for transfer in communication.handoffs}
        if communication
        else {}
    )
    # A run waits for its inputs and for each of its GPUs to reach it in its order.
    givers = needs(runs)
    takers: list[list[int]] = [[] for _ in runs]
    for taker, sources in enumerate(givers):
        for giver in sources:
            takers[giver].append(taker)
    waits = [len(run.gpus) + len(sources) for run, sources in zip(runs, givers, strict=True)]
    earliest_s = [run.start_s if time_triggered else 0.0 for run in runs]
    at = [0] * schedule.gpus
    done: dict[int, Run] = {}
    ready: list[int] = []

    def fewer(run_index: int, from_s: float) -> None:
        earliest_s[run_index] = max(earliest_s[run_index], from_s)
        waits[run_index] -= 1
        if not waits[run_index]:
            ready.append(run_index)

    # Begin with the first run of each GPU, then follow ends to what they release.
    for queue in queues:
        if queue:
            fewer(queue[0], 0.0)
    while ready:
        run_index = ready.pop()
        start_s = earliest_s[run_index]
        end_s = start_s + float(seconds_R[run_index])
        done[run_index] = runs[run_index]._replace(start_s=start_s, end_s=end_s)
        for taker in takers[run_index]:
            fewer(taker, end_s + delay_s.get((run_index, taker), 0.0))
        for gpu in runs[run_index].gpus:
            at[gpu] += 1
            if at[gpu] < len(queues[gpu]):
                fewer(queues[gpu][at[gpu]], end_s)
    # What is left waits for each other.
    if len(done) < len(runs):
        raise RunError(_stuck(schedule, queues, at, givers, done))
    return Schedule.of(done.values(), schedule.gpus)


def busy_s(executed: Schedule) -> Floats:
    """Return the busy seconds of each GPU, float64 [gpus]."""
    found_G = np.zeros(executed.gpus)
    for run in executed.runs:
        found_G[list(run.gpus)] += run.end_s - run.start_s
    return found_G


def flops_cv(executed: Schedule, flops_SM: Floats) -> float:
    """Return the coefficient of variation over GPUs of the FLOPs in an iteration (Arachne, Fig. 10).

    Args:
        executed: executed schedule.
        flops_SM: FLOPs of each cascade, shared evenly by its GPUs, float64 [S, M].
    """
    done_G = np.zeros(executed.gpus)
    for run in executed.runs:
        done_G[list(run.gpus)] += float(flops_SM[run.cascade]) / len(run.gpus)
    return float(done_G.std() / done_G.mean()) if done_G.any() else 0.0


class Gain(NamedTuple):
    """Decomposition of the difference between two makespans, in seconds.

    Attributes:
        less_work_s: reduction of compute and communication time, for example by other degrees.
        less_idle_s: reduction of idle time.
    """

    less_work_s: float
    less_idle_s: float


def gain(makespan_s: float, idle: float, other_s: float, other_idle: float) -> Gain:
    """Decompose the gain of one execution over another on equally many GPUs, or of means of several.

    Args:
        makespan_s: makespan of the first.
        idle: idle share of the first.
        other_s: makespan of the other.
        other_idle: idle share of the other.
    """
    return Gain(
        other_s * (1 - other_idle) - makespan_s * (1 - idle), other_s * other_idle - makespan_s * idle
    )


def _stuck(
    schedule: Schedule,
    queues: Orders,
    at: Sequence[int],
    givers: Sequence[Sequence[int]],
    done: dict[int, Run],
) -> str:
    """Describe a GPU whose order causes the deadlock."""
    run_index = next(run_index for run_index in range(len(schedule.runs)) if run_index not in done)
    while True:
        # A blocker precedes the run in the schedule, or its GPU is the culprit, so the loop ends.
        blockers = [giver for giver in givers[run_index] if giver not in done]
        for gpu in schedule.runs[run_index].gpus:
            if at[gpu] == len(queues[gpu]):
                return f"GPU {gpu} never runs {_name(schedule, run_index)}, for which the others wait"
            head = queues[gpu][at[gpu]]
            if head > run_index:
                return (
                    f"the order of GPU {gpu} is not that of the others: it runs {_name(schedule, head)} before"
                    f" {_name(schedule, run_index)}, and they wait for each other"
                )
            if head < run_index:
                blockers.append(head)
        run_index = min(blockers)


def _name(schedule: Schedule, run_index: int) -> str:
    sample, module = schedule.runs[run_index].cascade
    return f"the {Module(module).name} of sample {sample}"
