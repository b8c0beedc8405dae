"""Serial schedules: cascades in a given order, each as early as GPUs are left free by those before it.

None fills a hole that an earlier one left; but every schedule that cannot be shortened by starting a cascade sooner
comes out for some order (that of its starts), and a cascade costs ten nanoseconds.
"""

from typing import NamedTuple

import numpy as np

from loader.base.arrays import Floats, Numbers, Places
from train.cascade.problem import Module
from train.cascade.scheduling.compiled import compiled

MODULES = len(Module)
"""A number that the compiler knows: dividing by one that it does not know costs as much as all the rest of `lay`."""

MEAN = 0.3
"""Of the cost of a schedule, what the mean end of its GPUs counts; the rest is the makespan.

With the makespan alone most moves would change nothing: it is that of one of the stacks in a cell.
"""


class Shape(NamedTuple):
    """What cascades take with their degrees; cascade ``MODULES * sample + module`` has a line.

    Attributes:
        width_N: GPUs, int64 [S * M]; 0 where a sample has no such module.
        seconds_N: time, float64 [S * M]; 0 likewise.
    """

    width_N: Places
    seconds_N: Floats


class Scratch(NamedTuple):
    """Memory that `lay` writes to.

    Attributes:
        free_s: times from which GPUs are free, rising.
        free: how many from each time.
        ready_S: when what is placed of a sample's other modules ends.
        start_N: of each cascade, its start.
        makespan: of the schedule, a single number.
    """

    free_s: Floats
    free: Places
    ready_S: Floats
    start_N: Floats
    makespan: Floats

    @classmethod
    def of(cls, samples: int) -> "Scratch":
        """For so many samples."""
        count = samples * MODULES
        return cls(
            np.empty(count + 2),
            np.empty(count + 2, np.int64),
            np.empty(samples),
            np.empty(count),
            np.empty(1),
        )


@compiled
def lay(order_N: Numbers, count: int, shape: Shape, gpus: int, limit_s: float, scratch: Scratch) -> float:
    """The cost of an order, between its makespan and the mean end of its GPUs (`MEAN`).

    Args:
        order_N: cascades.
        count: how many of them.
        shape: of all cascades.
        gpus: that there are; as many as the widest needs, at least.
        limit_s: of the cost, where to give up.
        scratch: of the problem; ``start_N`` and ``makespan`` are found in it afterwards.

    Returns:
        Seconds; infinite when it is above the limit, or a DiT comes before what it needs.
    """
    width_N, seconds_N = shape
    free_s, free, ready_S, start_N = scratch[:4]
    work = 0.0
    for place in range(count):
        cascade = order_N[place]
        ready_S[cascade // MODULES] = 0.0
        work += width_N[cascade] * seconds_N[cascade]
    # GPUs end no sooner, on average, than their work is done, which leaves so much for the makespan.
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

        # It takes the GPUs that became free last, so that those that are free for longest are left to others.
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
    """Drops steps from ``begin`` to ``after``, and has GPUs free again from ``end_s`` on; how many steps there are."""
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
