"""Serial schedule generation: cascades in a given order, each as early as the earlier ones allow.

No cascade fills a gap that an earlier one left. Still, the order of starts of any schedule without avoidable
delay reproduces that schedule. Placing a cascade costs ten nanoseconds with free groups, where GPUs are only
counted. With the blocks of a menu it costs a few times as much.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray, IntegerArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.problem import Module

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
        k_N: index of the degree, int64 [S * M].
    """

    width_N: IndexArray
    seconds_N: Floats
    k_N: IndexArray


class Cells(NamedTuple):
    """Ranges of GPUs that hold cascades of their own, and the blocks that cascades may take there.

    Attributes:
        size_C: number of GPUs of each cell, int64 [C].
        first_C: first GPU of each cell, int64 [C].
        block_B: first GPU of each block, cell by cell and degree by degree, int64 [B]; empty: any GPUs form a group.
        slow_B: times that a cascade takes there of its time on GPUs that are all alike, float64 [B].
        offset_CK: first block of a cell and degree in ``block_B``, int64 [C, K + 1].
    """

    size_C: IndexArray
    first_C: IndexArray
    block_B: IndexArray
    slow_B: Floats
    offset_CK: IndexArray

    @classmethod
    def of(
        cls, size_C: IndexArray, degrees_K: IndexArray, menu: GroupMenu | None, slow_G: Floats | None = None
    ) -> "Cells":
        """Cut GPUs into cells of these sizes.

        Args:
            size_C: number of GPUs of each cell.
            degrees_K: numbers of GPUs that a cascade may have.
            menu: groups that cascades may have; None: any GPUs.
            slow_G: times that each GPU takes of the others' time; needs a menu; None: all are alike.
        """
        first_C, blocks, slow = np.cumsum(size_C) - size_C, list[int](), list[float]()
        offset_CK = np.zeros((len(size_C), len(degrees_K) + 1), np.int64)
        pace_G = np.ones(int(size_C.sum())) if slow_G is None else slow_G
        for cell, (first, size) in enumerate(zip(first_C.tolist(), size_C.tolist(), strict=True)):
            offset_CK[cell, 0] = len(blocks)
            for k, degree in enumerate(degrees_K.tolist()):
                if menu is not None:
                    starts = menu.firsts.get(degree, ())
                    low, high = bisect_left(starts, first), bisect_right(starts, first + size - degree)
                    blocks += starts[low:high]
                    slow += [float(pace_G[start : start + degree].max()) for start in starts[low:high]]
                offset_CK[cell, k + 1] = len(blocks)
        return cls(size_C, first_C, np.array(blocks, np.int64), np.array(slow, float), offset_CK)


class SerialScratch(NamedTuple):
    """Preallocated work buffers of `lay`.

    Attributes:
        free_s: times at which GPUs become free, rising.
        free: number of GPUs that become free at each time.
        ready_S: latest end of a sample's placed modules other than the DiT.
        start_N: start of each cascade.
        makespan: makespan of the schedule, a single number.
        free_G: time at which each GPU becomes free; for the blocks of a menu.
        first_N: first GPU of each cascade's block.
    """

    free_s: Floats
    free: IndexArray
    ready_S: Floats
    start_N: Floats
    makespan: Floats
    free_G: Floats
    first_N: IndexArray

    @classmethod
    def of(cls, samples: int, gpus: int) -> "SerialScratch":
        """Allocate buffers for a number of samples and of GPUs."""
        count = samples * MODULES
        return cls(
            np.empty(count + 2),
            np.empty(count + 2, np.int64),
            np.empty(samples),
            np.empty(count),
            np.empty(1),
            np.empty(gpus),
            np.zeros(count, np.int64),
        )


@compiled
def lay(
    order_N: IntegerArray,
    count: int,
    shape: CascadeTable,
    cell: int,
    cells: Cells,
    limit_s: float,
    scratch: SerialScratch,
) -> float:
    """Return the cost of an order: a blend of its makespan and the mean end of its GPUs (`MEAN`).

    Args:
        order_N: cascade numbers.
        count: number of cascades in the order.
        shape: GPUs and times of all cascades.
        cell: number of the cell; at least as many GPUs as the widest cascade.
        cells: GPUs of all cells.
        limit_s: cost at which to give up.
        scratch: buffers of the problem; ``start_N`` and ``makespan`` are set on return, with a menu ``first_N``, too.

    Returns:
        Seconds; infinite if the cost exceeds the limit or a DiT precedes its inputs.
    """
    width_N, seconds_N = shape.width_N, shape.seconds_N
    free_s, free, ready_S, start_N = scratch[:4]
    gpus, in_blocks = cells.size_C[cell], len(cells.block_B) > 0
    work = 0.0
    for index in range(count):
        cascade = order_N[index]
        ready_S[cascade // MODULES] = 0.0
        work += width_N[cascade] * seconds_N[cascade]
    # The mean end of GPUs is at least work / gpus, which bounds the makespan that the limit allows.
    latest_s = (limit_s - MEAN * work / gpus) / (1 - MEAN)
    spare = gpus * latest_s - work  # GPU-seconds that may stay unused
    if spare < 0:
        return np.inf
    if in_blocks:
        total_s = _in_blocks(order_N, count, shape, cell, cells, latest_s, spare, scratch)
        cost_s = (1 - MEAN) * scratch.makespan[0] + MEAN * total_s / gpus
        return cost_s if cost_s <= limit_s else np.inf
    free_s[0], free[0], steps, makespan = 0.0, gpus, 1, 0.0
    for index in range(count):
        cascade = order_N[index]
        width = width_N[cascade]
        if width == 0:
            continue
        sample = cascade // MODULES
        last = cascade - MODULES * sample == MODULES - 1
        if not last and ready_S[sample] < 0:
            return np.inf
        step, num_free = 0, free[0]
        while num_free < width:
            step += 1
            num_free += free[step]
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
            used = min(needed, free[step])
            spare -= used * (start_s - free_s[step])
            needed -= used
            free[step] -= used
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
def _in_blocks(
    order_N: IntegerArray,
    count: int,
    shape: CascadeTable,
    cell: int,
    cells: Cells,
    latest_s: float,
    spare: float,
    scratch: SerialScratch,
) -> float:
    """Place cascades on blocks of the menu and return the sum of the GPUs' ends, infinite where a limit is exceeded.

    Each takes the block where it ends first; of several the one whose GPUs became free last.
    """
    ready_S, start_N, free_G, first_N = scratch.ready_S, scratch.start_N, scratch.free_G, scratch.first_N
    begin = cells.first_C[cell]
    stop = begin + cells.size_C[cell]
    makespan = 0.0
    for gpu in range(begin, stop):
        free_G[gpu] = 0.0
    for index in range(count):
        cascade = order_N[index]
        width = shape.width_N[cascade]
        if width == 0:
            continue
        sample = cascade // MODULES
        last = cascade - MODULES * sample == MODULES - 1
        if not last and ready_S[sample] < 0:
            return np.inf
        ready_s = ready_S[sample] if last else 0.0
        # The block where it ends first; of several the one whose GPUs became free last.
        chosen, start_s, end_s, used_s = -1, 0.0, np.inf, 0.0
        k, seconds = shape.k_N[cascade], shape.seconds_N[cascade]
        for block in range(cells.offset_CK[cell, k], cells.offset_CK[cell, k + 1]):
            first = cells.block_B[block]
            own_s, sum_s = ready_s, 0.0
            for gpu in range(first, first + width):
                sum_s += free_G[gpu]
                own_s = max(own_s, free_G[gpu])
            its_s = own_s + seconds * cells.slow_B[block]
            if its_s < end_s or (its_s == end_s and sum_s > used_s):
                chosen, start_s, end_s, used_s = first, own_s, its_s, sum_s
        # Give up where the limit is passed, or more GPU time is idle than the limit spares.
        if not end_s <= latest_s or chosen < 0:
            return np.inf
        spare -= width * (end_s - seconds) - used_s
        if spare < -1e-9:
            return np.inf
        # Occupy the block, and let the sample's DiT begin behind its encoders.
        for gpu in range(chosen, chosen + width):
            free_G[gpu] = end_s
        makespan = max(makespan, end_s)
        start_N[cascade], first_N[cascade] = start_s, chosen
        ready_S[sample] = -1.0 if last else max(ready_S[sample], end_s)
    scratch.makespan[0] = makespan
    total_s = 0.0
    for gpu in range(begin, stop):
        total_s += free_G[gpu]
    return total_s


@compiled
def _release(
    free_s: Floats, free: IndexArray, begin: int, after: int, steps: int, end_s: float, width: int
) -> int:
    """Drop steps ``begin`` to ``after``, free GPUs again at ``end_s``, and return the number of steps."""
    position = begin
    # Steps that end before stay, and move forward over the dropped ones.
    while after < steps and free_s[after] < end_s:
        free_s[position], free[position] = free_s[after], free[after]
        position += 1
        after += 1
    # The new end: a step that is there already, a dropped one's place, or one between two.
    if after < steps and free_s[after] == end_s:
        free[after] += width
    elif position < after:
        free_s[position], free[position] = end_s, width
        position += 1
    else:
        for behind in range(steps, position, -1):
            free_s[behind], free[behind] = free_s[behind - 1], free[behind - 1]
        free_s[position], free[position] = end_s, width
        return steps + 1
    # Later steps close the gap.
    if position < after:
        while after < steps:
            free_s[position], free[position] = free_s[after], free[after]
            position += 1
            after += 1
        return position
    return steps
