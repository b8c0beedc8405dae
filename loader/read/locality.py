"""Requests and bytes of planned steps, and how much of the shuffle their locality costs."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from loader.base.arrays import Numbers, number_type, numbers
from loader.dataset.plan_index import PlanIndex
from loader.plan.epoch_plan import EpochPlan
from loader.read.fetch import ByteRange, coalesced

_MICROBATCHES = 20_000


@dataclass(frozen=True)
class Locality:
    """Figures of some steps, on all ranks.

    Attributes:
        requests_per_step: ranges that are asked for.
        requests_per_sample: 1 where no request reads two samples.
        bytes_per_step: that are sent.
        waste: bytes of gaps between samples over bytes of samples.
        neighbours: share of the samples whose neighbour in the shard, before or behind it, is in the same step; about
            the step's share of the dataset where the shuffle is even.
    """

    requests_per_step: float
    requests_per_sample: float
    bytes_per_step: float
    waste: float
    neighbours: float


def near_rows(index: PlanIndex) -> Numbers:
    """Return the place of each row in the order of the shards."""
    order = np.lexsort((index.offset[:], index.shard[:]))
    near_N = np.empty(len(order), number_type(len(order)))
    near_N[order] = numbers(len(order))
    return near_N


def locality(index: PlanIndex, plan: EpochPlan, near_N: Numbers) -> Locality:
    """Count what the first steps of a plan read.

    Args:
        index: of the dataset.
        plan: of an epoch of it.
        near_N: as of `near_rows`.
    """
    requests = samples = read = wanted = beside = 0
    steps = max(1, min(len(plan), _MICROBATCHES // plan.layout.per_step))
    for step in islice(plan, steps):
        own = []
        for micro in step.microbatches:
            columns = (column[micro.rows].tolist() for column in (index.shard, index.offset, index.size))
            places = [ByteRange(*place) for place in zip(*columns, strict=True)]
            asked = coalesced(places)
            requests += len(asked)
            read += sum(one.span.size for one in asked)
            wanted += sum(place.size for place in places)
            own.append(micro.rows)
        near = np.sort(near_N[np.concatenate(own)].astype(np.int64))
        follows = np.concatenate([[False], np.diff(near) == 1, [False]])
        beside += int((follows[1:] | follows[:-1]).sum())
        samples += len(near)
    return Locality(
        requests_per_step=requests / steps,
        requests_per_sample=requests / samples,
        bytes_per_step=read / steps,
        waste=read / wanted - 1,
        neighbours=beside / samples,
    )
