"""Packs of an epoch, step after step; samples that do not fit into a step begin the next one."""

from collections.abc import Iterator

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray, IntegerArray
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.plan.microbatch_table import MicrobatchTable
from reelweave.loader.plan.packing import CARRIED, PackSizes, balanced_packs, num_taken, packs_in_order
from reelweave.loader.plan.policy import StepLayout


def packs(
    assignment: Assignment, rows_N: IntegerArray, layout: StepLayout
) -> tuple[IndexArray, MicrobatchTable, int]:
    """Return all packs of an epoch, in the order of their steps; for the arguments see `pack_epoch`.

    Returns:
        Samples, int64 [N], as places in ``rows_N``.
        Packs as runs of these samples, with bucket -1.
        Number of samples that waited for one step because they fitted into no pack.
    """
    steps = list(pack_epoch(assignment, rows_N, layout))
    none = np.zeros(0, np.int64)
    size_M = np.concatenate([none, *(sizes for _, sizes, _ in steps)])
    table = MicrobatchTable(
        np.cumsum(size_M) - size_M, size_M, np.full_like(size_M, -1), np.ones_like(size_M)
    )
    return (
        np.concatenate([none, *(step_rows for step_rows, _, _ in steps)]),
        table,
        sum(late for _, _, late in steps),
    )


def pack_epoch(
    assignment: Assignment, rows_N: IntegerArray, layout: StepLayout
) -> Iterator[tuple[IndexArray, IndexArray, int]]:
    """Yield the packs of each step.

    Args:
        assignment: buckets and budgets.
        rows_N: [N], index rows in stream order; all have a bucket.
        layout: layout of each step; ``microbatches`` counts the packs of a rank.

    Yields:
        Samples of a step as places in ``rows_N``, by pack.
        int64 [P], number of samples per pack, where slot * ranks + rank numbers the packs. P is below ranks x packs
        at most in an epoch's last step.
        Number of samples that fit into no pack.
    """
    sizes = PackSizes(layout.ranks, layout.microbatches, assignment.budgets.memory_tokens)
    length_N = assignment.own_lengths(rows_N)
    cost_N, reach_N = assignment.cost.sample_s(length_N), np.cumsum(sizes.sizes(length_N))
    counted, limit = assignment.budgets.counted_cost, assignment.budgets.cost_limit
    counted_N = counted.sample_s(length_N)
    limit = None if limit is None else limit - counted.fixed_s
    late, at = np.zeros(0, np.int64), 0
    while remaining := len(late) + len(rows_N) - at:
        before = int(reach_N[at - 1]) if at else 0
        # An upper bound of the samples of this step, whatever the previous step carried over.
        behind = int(np.searchsorted(reach_N, before + sizes.per_step * sizes.tokens, side="right"))
        waiting = np.concatenate([late, np.arange(at, max(behind, min(len(rows_N), at + sizes.per_step)))])
        if remaining <= sizes.per_step:
            yield waiting, np.ones(len(waiting), np.int64), 0
            return
        if layout.policy == "equal_token":
            pack_n = _in_order(length_N[waiting], cost_N[waiting], sizes)
        else:
            count = min(num_taken(length_N[waiting], counted_N[waiting], sizes, limit), len(waiting))
            pack_n = balanced_packs(length_N[waiting[:count]], cost_N[waiting[:count]], sizes, len(late))
        packed_rows = waiting[: len(pack_n)]
        at = max(at, int(packed_rows[-1]) + 1)
        late = packed_rows[pack_n == CARRIED]
        order = np.argsort(pack_n, kind="stable")[len(late) :]
        yield packed_rows[order], np.bincount(pack_n[order], minlength=sizes.per_step), len(late)


def _in_order(length_n: IndexArray, cost_n: Floats, sizes: PackSizes) -> IndexArray:
    """Fill packs in stream order; balance them at the end of an epoch, where that order leaves packs empty."""
    pack_n = packs_in_order(length_n, sizes)
    return pack_n if pack_n[-1] + 1 == sizes.per_step else balanced_packs(length_n, cost_n, sizes)
