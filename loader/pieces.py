"""Cutting an epoch into microbatches: shuffled, full-sized, and as many as whole steps take."""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.arrays import Places
from loader.buckets import Assignment

Words = NDArray[np.uint64]


class Pieces(NamedTuple):
    """Microbatches as runs of an order.

    Attributes:
        start: int64 [M], of each run.
        size: int64 [M], samples of each.
        bucket: int64 [M], place in ``Assignment.buckets``.
    """

    start: Places
    size: Places
    bucket: Places

    def where(self, chosen: Places) -> "Pieces":
        """Some of them, in the order asked for."""
        return Pieces(*(column[chosen] for column in self))


def cut(
    assignment: Assignment, bucket_D: NDArray[np.integer], words_D: Words
) -> tuple[Places, Places, Pieces]:
    """Groups draws by bucket, shuffled within it, and cuts each group into microbatches of B.

    Args:
        assignment: buckets and their B.
        bucket_D: of each draw a place in ``assignment.buckets``, or -1.
        words_D: random sort keys.

    Returns:
        The draws that have a bucket, grouped; where each group begins, and the end, [K + 1]; and the microbatches
        among them, of which only the last of a bucket may be smaller than B.
    """
    order_D = np.lexsort((words_D, bucket_D))
    order_D = order_D[np.searchsorted(bucket_D[order_D], 0) :]
    count_K = np.bincount(bucket_D[order_D], minlength=len(assignment.buckets))
    batch_K = np.array([size.batch for size in assignment.batch_sizes])
    pieces_K = -(-count_K // batch_K)
    bucket_M = np.repeat(np.arange(len(count_K)), pieces_K)
    number_M = np.arange(len(bucket_M)) - np.repeat(np.cumsum(pieces_K) - pieces_K, pieces_K)
    done_M = number_M * batch_K[bucket_M]
    size_M = np.minimum(batch_K[bucket_M], count_K[bucket_M] - done_M)
    begin_K = np.concatenate([[0], np.cumsum(count_K)])
    return order_D, begin_K, Pieces(begin_K[bucket_M] + done_M, size_M, bucket_M)


def filled(pieces: Pieces, per_step: int) -> Pieces:
    """The largest halved until their number is whole steps, or nothing of more than one sample is left."""
    times = -len(pieces.start) % per_step
    largest = np.argsort(-pieces.size, kind="stable")[:times]
    heap = [
        (-size, start, bucket) for start, size, bucket in np.stack(pieces.where(largest), axis=1).tolist()
    ]
    heapq.heapify(heap)
    for _ in range(times if heap else 0):
        size, start, bucket = -heap[0][0], *heap[0][1:]
        if size == 1:
            break
        half = (size + 1) // 2
        heapq.heapreplace(heap, (-half, start, bucket))
        heapq.heappush(heap, (half - size, start + half, bucket))
    halved = np.array([(start, -size, bucket) for size, start, bucket in heap], np.int64).reshape(-1, 3)
    return Pieces(
        *(np.concatenate([np.delete(kept, largest), new]) for kept, new in zip(pieces, halved.T, strict=True))
    )


def shuffled(pieces: Pieces, words_M: Words, run: int) -> Pieces:
    """In random order; runs of one bucket as wholes, and what fills no run comes last.

    Args:
        pieces: microbatches.
        words_M: random sort keys.
        run: as many in a row have one bucket.
    """
    if run == 1:
        return pieces.where(np.argsort(words_M, kind="stable"))
    by_bucket = np.lexsort((words_M, pieces.bucket))
    bucket_M = pieces.bucket[by_bucket]
    place_M = np.arange(len(by_bucket)) - np.searchsorted(bucket_M, bucket_M)  # within the bucket
    left_over_M = place_M >= np.bincount(bucket_M)[bucket_M] // run * run
    # A run goes by the word of its first microbatch.
    key_M = words_M[by_bucket[np.arange(len(by_bucket)) - place_M % run]]
    return pieces.where(by_bucket[np.lexsort((place_M, key_M, left_over_M))])
