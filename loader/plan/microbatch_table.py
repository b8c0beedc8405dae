"""Cutting of an epoch into microbatches: full size, a whole number of steps, and random order."""

import heapq
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import IndexArray, IntegerArray, number_type
from reelweave.loader.base.philox import shuffle_indices


class MicrobatchRuns(NamedTuple):
    """Microbatches as runs of an order of draws.

    Attributes:
        start: int64 [M], first place of each run.
        size: int64 [M], number of samples of each run.
        bucket: int64 [M], place in ``Assignment.buckets``.
    """

    start: IndexArray
    size: IndexArray
    bucket: IndexArray


class MicrobatchTable(NamedTuple):
    """Run-length table of all microbatches that an order of draws is cut into, numbered in that order.

    Consecutive microbatches of equal bucket and size form one row, a stretch; so the table is short.

    Attributes:
        start: int64 [S], first place of each stretch in the order; rising.
        size: int64 [S], samples per microbatch.
        bucket: int64 [S], place in ``Assignment.buckets``.
        length: int64 [S], number of microbatches; may be 0.
    """

    start: IndexArray
    size: IndexArray
    bucket: IndexArray
    length: IndexArray

    @property
    def total(self) -> int:
        """Number of microbatches in the table."""
        return int(self.length.sum())

    def runs(self, numbers_M: IntegerArray) -> MicrobatchRuns:
        """Return some microbatches by their numbers."""
        number_M = numbers_M.astype(np.int64)
        behind_S: IndexArray = np.cumsum(self.length)
        stretch_M = np.searchsorted(behind_S, number_M, side="right")
        earlier_M: IndexArray = number_M - (behind_S - self.length)[stretch_M]  # place within the stretch
        size_M = self.size[stretch_M]
        return MicrobatchRuns(self.start[stretch_M] + earlier_M * size_M, size_M, self.bucket[stretch_M])


def cut_microbatches(count_K: IndexArray, batch_K: IndexArray) -> MicrobatchTable:
    """Cut draws grouped by bucket into microbatches of B; only the last one of a bucket may be smaller.

    Args:
        count_K: number of draws of each bucket.
        batch_K: B of each bucket.
    """
    full_K, rest_K = np.divmod(count_K, batch_K)
    begin_K = np.cumsum(count_K) - count_K
    pairs_K2 = (
        (begin_K, begin_K + full_K * batch_K),
        (batch_K, rest_K),
        (np.arange(len(count_K)),) * 2,
        (full_K, np.minimum(rest_K, 1)),
    )
    return MicrobatchTable(*(np.stack(pair_K2, axis=1).ravel() for pair_K2 in pairs_K2))


def fill_steps(table: MicrobatchTable, per_step: int) -> MicrobatchTable:
    """Halve the largest microbatches until their number makes whole steps, or none has more than one sample.

    Halved microbatches come from the ends of their stretches, and each half is a stretch of its own.
    """
    # How many more microbatches make whole steps, and from which stretches the largest are taken.
    times = -table.total % per_step
    largest = np.argsort(-table.size, kind="stable")
    reach = np.cumsum(table.length[largest])
    fill_counts = np.zeros_like(table.length)
    fill_counts[largest] = np.diff(np.minimum(reach, times), prepend=0)
    retained = table._replace(length=table.length - fill_counts)
    # The largest are halved again and again, until there are enough of them.
    heap = [
        (-size, start + index * size, bucket)
        for start, size, bucket, remaining, gone in np.stack([*retained, fill_counts], axis=1)[
            fill_counts > 0
        ].tolist()
        for index in range(remaining, remaining + gone)
    ]
    heapq.heapify(heap)
    for _ in range(times if heap else 0):
        size, start, bucket = -heap[0][0], *heap[0][1:]
        if size == 1:
            break
        half = (size + 1) // 2
        heapq.heapreplace(heap, (-half, start, bucket))
        heapq.heappush(heap, (half - size, start + half, bucket))
    # All stretches again in their order.
    halved = np.array([(start, -size, bucket, 1) for size, start, bucket in heap], np.int64).reshape(-1, 4)
    table_S4 = np.concatenate([np.stack(retained, axis=1), halved])
    return MicrobatchTable(*table_S4[np.argsort(table_S4[:, 0], kind="stable")].T)


def training_order(table: MicrobatchTable, run: int, seed: int, counter: int, purpose: int) -> IntegerArray:
    """Return the numbers of all microbatches in random order; with ``run`` > 1, whole runs of one bucket first.

    Microbatches of a run stay adjacent in the order of draws, too: their samples are in random order already.

    Args:
        table: microbatches.
        run: number of consecutive microbatches from one bucket.
        seed: see `reelweave.loader.base.philox.words`.
        counter: see `reelweave.loader.base.philox.words`.
        purpose: see `reelweave.loader.base.philox.words`.
    """
    if run == 1:
        return shuffle_indices(seed, counter, purpose, table.total)
    # The same function that cuts samples into microbatches cuts microbatches into runs.
    count_K = np.bincount(table.bucket, table.length).astype(np.int64)
    lots = cut_microbatches(count_K, np.full_like(count_K, run))
    start_R, size_R, _ = lots.runs(np.arange(lots.total))
    turn_R = shuffle_indices(seed, counter, purpose, lots.total, (size_R < run).astype(np.uint8))
    return expand_ranges(start_R[turn_R], size_R[turn_R]).astype(number_type(table.total))


def expand_ranges(start_M: IndexArray, size_M: IndexArray) -> IndexArray:
    """Return the numbers of ranges, one range after the other."""
    reach_M = np.cumsum(size_M)
    indices: IndexArray = np.repeat(start_M - (reach_M - size_M), size_M) + np.arange(size_M.sum())
    return indices
