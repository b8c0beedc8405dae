"""Order of an epoch's draws, the microbatches that they are cut into, and the turns of these."""

import numpy as np

from loader.base.arrays import Flags, Numbers, Places, numbers
from loader.base.columns import parts
from loader.base.philox import shuffled
from loader.buckets.assignment import Assignment
from loader.dataset.draws import Draws
from loader.plan.microbatch_table import MicrobatchTable, cut_microbatches, fill_steps, training_order
from loader.plan.pack_plan import packs
from loader.plan.policy import StepLayout
from loader.plan.shuffle import Grouped, Permuted, Shuffle, grouped


def group_draws(assignment: Assignment, draws: Draws, near_N: Numbers | None = None) -> Grouped:
    """Group the draws of an epoch by bucket, for a permuted order; equal for epochs with equal draws."""
    return grouped_draws(assignment, draws, np.zeros(len(draws.rows), np.bool_), near_N)


def grouped_draws(assignment: Assignment, draws: Draws, over_D: Flags, near_N: Numbers | None) -> Grouped:
    """Group the draws that are not over by bucket, for a permuted order."""
    group_D, _ = _groups(assignment, draws, over_D)
    return grouped(group_D, len(assignment.buckets), None if near_N is None else near_N[draws.rows])


def _groups(assignment: Assignment, draws: Draws, over_D: Flags) -> tuple[Numbers, Places]:
    """Return each draw's group (0 if done or without a bucket, else bucket + 1), and the size of each group."""
    group_D = np.empty(len(over_D), assignment.bucket_of.dtype)
    count_G = np.zeros(len(assignment.buckets) + 1, np.int64)
    for some in parts(len(group_D)):
        bucket_d = assignment.bucket_of[draws.rows[some]]
        group_D[some] = np.where(over_D[some], 0, bucket_d + 1)  # group 0 is not drawn
        count_G += np.bincount(group_D[some], minlength=len(count_G))
    return group_D, count_G


def permuted_order(
    assignment: Assignment,
    seed: int,
    epoch: int,
    part: int,
    layout: StepLayout,
    shuffle: Shuffle,
    groups: Grouped,
) -> tuple[Permuted, MicrobatchTable, Numbers | Permuted, int]:
    """Return order, table, turns and number of fillers of a plan; see `EpochPlan`."""
    order = Permuted(seed, epoch, 2 * part, groups.starts, groups.numbers, shuffle.run)
    table = cut_microbatches(
        np.diff(groups.starts), np.array([size.batch for size in assignment.batch_sizes])
    )
    table = fill_steps(table, layout.per_step)
    fillers = -table.total % layout.per_step
    begun = (table.total - 1) % layout.per_step + 1  # microbatches that the last step has of its own
    turns: Numbers | Permuted = Permuted(
        seed, epoch, 2 * part + 1, np.array([0, table.total]), fillers=fillers, last=begun
    )
    if layout.run > 1:
        turns = training_order(table, layout.run, seed, epoch, 2 * part + 1)
        turns = np.concatenate([turns, np.resize(turns[len(turns) - begun :], fillers)])
    return order, table, turns, fillers


def sorted_order(
    assignment: Assignment,
    seed: int,
    epoch: int,
    part: int,
    layout: StepLayout,
    draws: Draws,
    over_D: Flags,
) -> tuple[Numbers, MicrobatchTable, Numbers, int, int]:
    """Return order, table, turns, number of fillers and number of carried samples of a plan; see `EpochPlan`."""
    group_D, count_G = _groups(assignment, draws, over_D)
    carried = 0
    if layout.regime == "pack":
        order = shuffled(seed, epoch, 2 * part, len(group_D), (group_D > 0).astype(np.uint8))[count_G[0] :]
        packed, table, carried = packs(assignment, draws.rows[order], layout)
        order, turns = order[packed], numbers(table.total)
    else:
        order = shuffled(seed, epoch, 2 * part, len(group_D), group_D)[count_G[0] :]
        table = cut_microbatches(count_G[1:], np.array([size.batch for size in assignment.batch_sizes]))
        table = fill_steps(table, layout.per_step)
        turns = training_order(table, layout.run, seed, epoch, 2 * part + 1)
    fillers = -len(turns) % layout.per_step
    if fillers:  # the last step repeats its own microbatches
        last = turns[len(turns) // layout.per_step * layout.per_step :]
        turns = np.concatenate([turns, np.resize(last, fillers)])
    return order, table, turns, fillers, carried
