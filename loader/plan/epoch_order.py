"""Order of an epoch's draws, the microbatches that they are cut into, and the turns of these."""

from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray, IntegerArray, numbers
from reelweave.loader.base.columns import parts
from reelweave.loader.base.philox import shuffle_indices
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.plan.microbatch_table import (
    MicrobatchTable,
    cut_microbatches,
    fill_steps,
    training_order,
)
from reelweave.loader.plan.pack_plan import packs
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.plan.shuffle import Grouped, Permuted, Shuffle, sort_by_group


class EpochPart(NamedTuple):
    """Part of an epoch with one assignment and one layout: what is drawn in it, and the keys of its random orders.

    Attributes:
        assignment: samples in buckets.
        seed: seed of the run.
        epoch: number of the epoch.
        number: number of the part in the epoch.
        layout: layout of a step over the ranks.
        draws: draws of the epoch.
        over_D: True for draws that earlier parts have trained on.
        shuffle: shuffle of samples within their buckets.
        near_N: place of each row in the order of the shards; None is the row order.
    """

    assignment: Assignment
    seed: int
    epoch: int
    number: int
    layout: StepLayout
    draws: Draws
    over_D: Flags
    shuffle: Shuffle
    near_N: IntegerArray | None

    @property
    def samples_key(self) -> tuple[int, int, int]:
        """Seed, epoch and stream of the random order of samples."""
        return self.seed, self.epoch, 2 * self.number

    @property
    def turns_key(self) -> tuple[int, int, int]:
        """Seed, epoch and stream of the random order of microbatches."""
        return self.seed, self.epoch, 2 * self.number + 1

    @property
    def batch_sizes(self) -> IndexArray:
        """B of each bucket, int64 [K]."""
        return np.array([size.batch for size in self.assignment.batch_sizes])


def group_draws(assignment: Assignment, draws: Draws, near_N: IntegerArray | None = None) -> Grouped:
    """Group the draws of an epoch by bucket, for a permuted order; equal for epochs with equal draws."""
    return grouped_draws(assignment, draws, np.zeros(len(draws.rows), np.bool_), near_N)


def grouped_draws(
    assignment: Assignment, draws: Draws, over_D: Flags, near_N: IntegerArray | None
) -> Grouped:
    """Group the draws that are not over by bucket, for a permuted order."""
    group_D, _ = _groups(assignment, draws, over_D)
    return sort_by_group(group_D, len(assignment.buckets), None if near_N is None else near_N[draws.rows])


def _groups(assignment: Assignment, draws: Draws, over_D: Flags) -> tuple[IntegerArray, IndexArray]:
    """Return each draw's group (0 if done or without a bucket, else bucket + 1), and the size of each group."""
    group_D = np.empty(len(over_D), assignment.bucket_of.dtype)
    count_G = np.zeros(len(assignment.buckets) + 1, np.int64)
    for some in parts(len(group_D)):
        bucket_d = assignment.bucket_of[draws.rows[some]]
        group_D[some] = np.where(over_D[some], 0, bucket_d + 1)  # group 0 is not drawn
        count_G += np.bincount(group_D[some], minlength=len(count_G))
    return group_D, count_G


def permuted_order(
    part: EpochPart, groups: Grouped
) -> tuple[Permuted, MicrobatchTable, IntegerArray | Permuted, int]:
    """Return order, table, turns and number of fillers of a plan; see `EpochPlan`."""
    layout = part.layout
    order = Permuted(*part.samples_key, groups.starts, groups.numbers, part.shuffle.run)
    table = fill_steps(cut_microbatches(np.diff(groups.starts), part.batch_sizes), layout.per_step)
    fillers = -table.total % layout.per_step
    begun = (table.total - 1) % layout.per_step + 1  # microbatches that the last step has of its own
    turns: IntegerArray | Permuted = Permuted(
        *part.turns_key, np.array([0, table.total]), fillers=fillers, last=begun
    )
    if layout.run > 1:
        turns = training_order(table, layout.run, *part.turns_key)
        turns = np.concatenate([turns, np.resize(turns[len(turns) - begun :], fillers)])
    return order, table, turns, fillers


def sorted_order(part: EpochPart) -> tuple[IntegerArray, MicrobatchTable, IntegerArray, int, int]:
    """Return order, table, turns, number of fillers and number of carried samples of a plan; see `EpochPlan`."""
    layout = part.layout
    group_D, count_G = _groups(part.assignment, part.draws, part.over_D)
    carried = 0
    if layout.regime == "pack":
        order = shuffle_indices(*part.samples_key, len(group_D), (group_D > 0).astype(np.uint8))[count_G[0] :]
        packed, table, carried = packs(part.assignment, part.draws.rows[order], layout)
        order, turns = order[packed], numbers(table.total)
    else:
        order = shuffle_indices(*part.samples_key, len(group_D), group_D)[count_G[0] :]
        table = fill_steps(cut_microbatches(count_G[1:], part.batch_sizes), layout.per_step)
        turns = training_order(table, layout.run, *part.turns_key)
    fillers = -len(turns) % layout.per_step
    if fillers:  # the last step repeats its own microbatches
        last = turns[len(turns) // layout.per_step * layout.per_step :]
        turns = np.concatenate([turns, np.resize(last, fillers)])
    return order, table, turns, fillers, carried
