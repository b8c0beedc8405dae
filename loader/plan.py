"""Step plans: which samples each rank trains on in each step of an epoch, the same on every rank.

Random words (`loader.draws`) serve as sort keys.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.buckets import Assignment
from loader.cost import seconds
from loader.draws import words
from loader.errors import UsageError
from loader.policy import Division, place

SAMPLES, MICROBATCHES = 0, 1


@dataclass(frozen=True, eq=False)
class PlannedMicrobatch:
    """What one rank trains on at once.

    Attributes:
        bucket: place in ``Assignment.buckets``.
        rows: int64 [B], index rows.
        weight: B over the samples of the step on all ranks, so that the weighted sum of all microbatches' mean
            losses is the mean over the step's samples. 0 marks a filler (``plan_epoch``).
        rank: that runs it.
        slot: its place in the order of the rank's microbatches of the step.
    """

    bucket: int
    rows: NDArray[np.int64]
    weight: float
    rank: int
    slot: int


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One optimizer step: microbatches of all ranks or of one, by rank and slot.

    Attributes:
        microbatches: every rank has at least one.
        samples: of the step, on all ranks.
    """

    microbatches: tuple[PlannedMicrobatch, ...]
    samples: int


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The steps of one epoch; a sequence of ``StepPlan`` that holds four arrays and no object per step.

    Attributes:
        rows: int64 [N], index rows, grouped so that each microbatch is one run of them.
        starts: int64 [M], where each microbatch starts in ``rows``; M is steps x microbatches of a step.
        sizes: int64 [M], samples of each microbatch.
        buckets: int64 [M], place in ``Assignment.buckets`` of each microbatch.
        costs: float64 [M], of each.
        fillers: how many microbatches at the very end repeat another one with weight 0.
        division: how a step is divided over the ranks.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    buckets: NDArray[np.int64]
    costs: NDArray[np.float64]
    fillers: int
    division: Division

    def __len__(self) -> int:
        return len(self.starts) // self.division.per_step

    def __getitem__(self, step: int) -> StepPlan:
        return self.step(step)

    def step(self, step: int, rank: int | None = None) -> StepPlan:
        """One step; of one rank alone, where it is given: a large cluster's step has thousands of microbatches."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of a plan of {len(self)} steps")
        first, counted = step * self.division.per_step, len(self.starts) - self.fillers
        last = first + self.division.per_step
        samples = int(self.sizes[first : min(last, counted)].sum())
        placement = place(self.division.policy, self.costs[first:last], self.division.ranks)
        order = np.lexsort((placement.slot, placement.rank))
        if rank is not None:
            order = order[placement.rank[order] == rank]
        return StepPlan(
            microbatches=tuple(
                PlannedMicrobatch(
                    bucket=int(self.buckets[first + at]),
                    rows=self.rows[
                        self.starts[first + at] : self.starts[first + at] + self.sizes[first + at]
                    ],
                    weight=int(self.sizes[first + at]) / samples if first + at < counted else 0.0,
                    rank=int(placement.rank[at]),
                    slot=int(placement.slot[at]),
                )
                for at in order.tolist()
            ),
            samples=samples,
        )

    def __iter__(self) -> Iterator[StepPlan]:
        return (self[step] for step in range(len(self)))


class Done(NamedTuple):
    """The first part of an epoch, or the next one, that is over: trained in steps of that many microbatches."""

    per_step: int
    steps: int


def plan_epoch(
    assignment: Assignment, seed: int, epoch: int, division: Division, done: Sequence[Done] = ()
) -> EpochPlan:
    """Plans an epoch, or the rest of one, in which every assigned sample is trained on exactly once.

    Samples are shuffled within their buckets and cut into microbatches of B (the last of a bucket may be
    smaller), the microbatches are shuffled, and as many as a step takes are divided over the ranks. Where their
    number is no multiple of that, the largest are halved until it is. Where nothing is left to halve (buckets
    of B = 1), the last step is filled up with repeated microbatches of weight 0.

    Which samples a step holds follows from the number of its microbatches alone, ranks x m: 8 x 1, 4 x 2 and 2 x 4
    train the same steps.

    Args:
        assignment: samples in buckets.
        seed: of the whole run, 0 to 2^64 - 1.
        epoch: from 0.
        division: of a step over the ranks.
        done: what is over of this epoch, in order, where steps had another size before; what is left is planned.

    Raises:
        UsageError: there are fewer samples in buckets than microbatches in a step.
    """
    rows_N, pieces_M3 = cut(assignment, words(seed, epoch, SAMPLES, len(assignment.bucket_of)))
    if len(rows_N) < division.per_step:
        raise UsageError(
            f"{len(rows_N)} samples in buckets cannot fill the {division.per_step} microbatches of a step (ranks:"
            f" {division.ranks}, of each: {division.microbatches}): use fewer of them or allow more shapes"
        )
    for number, part in enumerate(done):
        pieces_M3 = _shuffled(pieces_M3, seed, epoch, number, part.per_step)[part.steps * part.per_step :]
    per_step = division.per_step
    pieces_M3 = _shuffled(pieces_M3, seed, epoch, len(done), per_step)
    fillers = -len(pieces_M3) % per_step
    last_step_X3 = pieces_M3[len(pieces_M3) // per_step * per_step :]
    start_M, size_M, bucket_M = np.concatenate([pieces_M3, np.resize(last_step_X3, (fillers, 3))]).T
    cost_M = seconds(division.cost, size_M, np.array(assignment.lengths)[bucket_M])
    return EpochPlan(rows_N, start_M, size_M, bucket_M, cost_M, fillers, division)


def start_frame(seed: int, epoch: int, key: str, clip_frames: int, frames: int) -> int:
    """The first of ``frames`` frames to train on: uniform over the clip, fixed by seed, epoch and key."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (clip_frames - frames + 1)


def cut(assignment: Assignment, words_N: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffled rows grouped by bucket, and (start, size, bucket) of each microbatch among them."""
    order_N = np.lexsort((words_N, assignment.bucket_of))
    rows_N = order_N[np.searchsorted(assignment.bucket_of[order_N], 0) :]
    counts = np.bincount(assignment.bucket_of[rows_N], minlength=len(assignment.buckets)).tolist()
    pieces = []
    end = 0
    for bucket, (count, size) in enumerate(zip(counts, assignment.batch_sizes, strict=True)):
        start_X = np.arange(end, end + count, size.batch)
        end += count
        size_X = np.minimum(size.batch, end - start_X)
        pieces.append(np.stack([start_X, size_X, np.full_like(start_X, bucket)], axis=1))
    return rows_N, np.concatenate(pieces)


def _shuffled(
    pieces_M3: NDArray[np.int64], seed: int, epoch: int, part: int, per_step: int
) -> NDArray[np.int64]:
    """Microbatches in the order of the ``part``-th part of an epoch, halved where that fills its last step."""
    pieces_M3 = _halve_largest(pieces_M3, -len(pieces_M3) % per_step)
    return pieces_M3[np.argsort(words(seed, epoch, MICROBATCHES + part, len(pieces_M3)), kind="stable")]


def _halve_largest(pieces_M3: NDArray[np.int64], times: int) -> NDArray[np.int64]:
    """Halves the largest microbatch ``times`` times, as long as one of more than one sample is left."""
    largest = np.argsort(-pieces_M3[:, 1], kind="stable")[:times]
    heap = [(-size, start, bucket) for start, size, bucket in pieces_M3[largest].tolist()]
    heapq.heapify(heap)
    for _ in range(times):
        size, start, bucket = -heap[0][0], *heap[0][1:]
        if size == 1:
            break
        half = (size + 1) // 2
        heapq.heapreplace(heap, (-half, start, bucket))
        heapq.heappush(heap, (half - size, start + half, bucket))
    halved = np.array([(start, -size, bucket) for size, start, bucket in heap], dtype=np.int64).reshape(-1, 3)
    return np.concatenate([np.delete(pieces_M3, largest, axis=0), halved])
