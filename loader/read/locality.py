"""Locality of planned steps: requests, bytes, and the loss of randomness."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from reelweave.loader.base.arrays import IntegerArray, number_type, numbers
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.plan.epoch_plan import EpochPlan
from reelweave.loader.read.fetch import ByteRange, coalesce_ranges

_MICROBATCHES = 20_000


@dataclass(frozen=True)
class Locality:
    """Locality of some steps, on all ranks.

    Attributes:
        requests_per_step: number of read requests per step.
        requests_per_sample: number of requests per sample; 1 if no request reads two samples.
        bytes_per_step: bytes transferred per step.
        waste: ratio of gap bytes between samples to bytes of samples.
        neighbours: share of samples with an adjacent sample of the shard in the same step. For an even shuffle it is
            about the step's share of the dataset.
    """

    requests_per_step: float
    requests_per_sample: float
    bytes_per_step: float
    waste: float
    neighbours: float


def near_rows(index: PlanIndex) -> IntegerArray:
    """Return the place of each row in the order of the shards."""
    order = np.lexsort((index.offset[:], index.shard[:]))
    near_N = np.empty(len(order), number_type(len(order)))
    near_N[order] = numbers(len(order))
    return near_N


def locality(index: PlanIndex, plan: EpochPlan, near_N: IntegerArray) -> Locality:
    """Measure the reads of the first steps of a plan.

    Args:
        index: plan index of the dataset.
        plan: plan of an epoch of the dataset.
        near_N: place of each row in the order of the shards, see `near_rows`.
    """
    requests = samples = read = needed = beside = 0
    steps = max(1, min(len(plan), _MICROBATCHES // plan.layout.per_step))
    for step in islice(plan, steps):
        # Each microbatch is fetched by itself: near ranges become one request.
        rank_requests = []
        for micro in step.microbatches:
            columns = (column[micro.rows].tolist() for column in (index.shard, index.offset, index.size))
            ranges = [ByteRange(*span_fields) for span_fields in zip(*columns, strict=True)]
            coalesced_ranges = coalesce_ranges(ranges)
            requests += len(coalesced_ranges)
            read += sum(request.span.size for request in coalesced_ranges)
            needed += sum(byte_range.size for byte_range in ranges)
            rank_requests.append(micro.rows)
        # Samples of a step whose neighbour in a shard is of the same step, on whichever rank.
        near = np.sort(near_N[np.concatenate(rank_requests)].astype(np.int64))
        follows = np.concatenate([[False], np.diff(near) == 1, [False]])
        beside += int((follows[1:] | follows[:-1]).sum())
        samples += len(near)
    return Locality(
        requests_per_step=requests / steps,
        requests_per_sample=requests / samples,
        bytes_per_step=read / steps,
        waste=read / needed - 1,
        neighbours=beside / samples,
    )
