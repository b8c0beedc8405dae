"""Serial schedule generation: cascades in a given order, each as early as the earlier ones allow.

No cascade fills a gap that an earlier one left. Still, the order of starts of any schedule without avoidable
delay reproduces that schedule, and placing a cascade costs ten nanoseconds.
"""

from typing import NamedTuple

import numpy as np

from loader.base.arrays import Floats, Numbers, Places
from train.cascade.problem import Module
from train.cascade.scheduling.compiled import compiled

MODULES = len(Module)
"""Compile-time constant: division by a runtime value costs as much as all the rest of `lay`."""

MEAN = 0.3
"""Weight of the mean end of GPUs in the cost of a schedule; the rest is the makespan.

By the makespan alone most moves would change nothing, since one stack in a cell decides it.
"""


class CascadeTable(NamedTuple):
    """GPUs and time of each cascade ``MODULES * sample + module`` at its degree.

    Attributes:
        width_N: number of GPUs, int64 [S * M]; 0 where a sample lacks the module.
        seconds_N: duration, float64 [S * M]; 0 where a sample lacks the module.
    """

    width_N: Places
    seconds_N: Floats


class SerialScratch(NamedTuple):
    """Preallocated work buffers of `lay`.

    Attributes:
        free_s: times at which GPUs become free, rising.
        free: number of GPUs that become free at each time.
        ready_S: latest end of a sample's placed modules other than the DiT.
        start_N: start of each cascade.
        makespan: makespan of the schedule, a single number.
    """

    free_s: Floats
    free: Places
    ready_S: Floats
    start_N: Floats
    makespan: Floats

    @classmethod
    def of(cls, samples: int) -> "SerialScratch":
        """Allocate buffers for a number of samples."""
        count = samples * MODULES
        return cls(
            np.empty(count + 2),
            np.empty(count + 2, np.int64),
            np.empty(samples),
            np.empty(count),
            np.empty(1),
        )


@compiled
def lay(
    order_N: Numbers, count: int, shape: CascadeTable, gpus: int, limit_s: float, scratch: SerialScratch
) -> float:
    """Return the cost of an order: a blend of its makespan and the mean end of its GPUs (`MEAN`).

    Args:
        order_N: cascade numbers.
        count: number of cascades in the order.
        shape: GPUs and times of all cascades.
        gpus: number of GPUs; at least the widest cascade.
        limit_s: cost at which to give up.
        scratch: buffers of the problem; ``start_N`` and ``makespan`` are set on return.

    Returns:
        Seconds; infinite if the cost exceeds the limit or a DiT precedes its inputs.
    """
    width_N, seconds_N = shape
    free_s, free, ready_S, start_N = scratch[:4]
    work = 0.0
    for place in range(count):
        cascade = order_N[place]
        ready_S[cascade // MODULES] = 0.0
        work += width_N[cascade] * seconds_N[cascade]
    # The mean end of GPUs is at least work / gpus, which bounds the makespan that the limit allows.
    latest_s = (limit_s - MEAN * work / gpus) / (1 - MEAN)
    spare = gpus * latest_s - work  # GPU-seconds that may stay unused
    if spare < 0:
        return np.inf
    free_s[0], free[0], steps, makespan = 0.0, gpus, 1, 0.0
    for place in range(count):
        cascade = order_N[place]
        width = width_N[cascade]
        if width == 0:
            continue
        sample = cascade // MODULES
        last = cascade - MODULES * sample == MODULES - 1
        if not last and ready_S[sample] < 0:
            return np.inf
        step, found = 0, free[0]
        while found < width:
            step += 1
            found += free[step]
        start_s = free_s[step]
        if last:
            start_s = max(start_s, ready_S[sample])
        end_s = start_s + seconds_N[cascade]
        if end_s > latest_s:
            return np.inf
        makespan = max(makespan, end_s)
        start_N[cascade] = start_s
        ready_S[sample] = -1.0 if last else max(ready_S[sample], end_s)

        # Take the GPUs that became free last, so that later cascades find the longest idle ones.
        while step + 1 < steps and free_s[step + 1] <= start_s:
            step += 1
        after, needed = step + 1, width
        while needed > 0:
            taken = min(needed, free[step])
            spare -= taken * (start_s - free_s[step])
            needed -= taken
            free[step] -= taken
            if free[step] == 0:
                step -= 1
        if spare < -1e-9:
            return np.inf
        steps = _release(free_s, free, step + 1, after, steps, end_s, width)
    total_s = 0.0
    for step in range(steps):
        total_s += free_s[step] * free[step]
    scratch.makespan[0] = makespan
    cost_s = (1 - MEAN) * makespan + MEAN * total_s / gpus
    return cost_s if cost_s <= limit_s else np.inf


@compiled
def _release(
    free_s: Floats, free: Places, begin: int, after: int, steps: int, end_s: float, width: int
) -> int:
    """Drop steps ``begin`` to ``after``, free GPUs again at ``end_s``, and return the number of steps."""
    place = begin
    while after < steps and free_s[after] < end_s:
        free_s[place], free[place] = free_s[after], free[after]
        place += 1
        after += 1
    if after < steps and free_s[after] == end_s:
        free[after] += width
    elif place < after:
        free_s[place], free[place] = end_s, width
        place += 1
    else:
        for behind in range(steps, place, -1):
            free_s[behind], free[behind] = free_s[behind - 1], free[behind - 1]
        free_s[place], free[place] = end_s, width
        return steps + 1
    if place < after:
        while after < steps:
            free_s[place], free[place] = free_s[after], free[after]
            place += 1
            after += 1
        return place
    return steps
