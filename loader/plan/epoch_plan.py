"""Step plans: the samples of each rank in each step of an epoch, computed equally on every rank.

An epoch consists of two random orders: of the samples within their buckets, and of the microbatches that these are cut
into. A microbatch's content follows from its number (`reelweave.loader.plan.microbatch_table`), so a plan
takes 4 bytes per sample and 4 per microbatch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray, IntegerArray, numbers
from reelweave.loader.base.columns import parts
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.buckets.cost import seconds
from reelweave.loader.buckets.unassigned import Unassigned
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_order import EpochPart, grouped_draws, permuted_order, sorted_order
from reelweave.loader.plan.microbatch_table import MicrobatchRuns, MicrobatchTable, expand_ranges
from reelweave.loader.plan.policy import Placement, StepLayout, place
from reelweave.loader.plan.shuffle import SORTED, Grouped, Permuted, Shuffle

_DRAWN_AT_ONCE = 1 << 16
_KEPT_WINDOWS = 64  # windows kept behind the current one; slower processes place theirs again


@dataclass(frozen=True, eq=False)
class PlannedMicrobatch:
    """Samples of one forward pass on one rank.

    Attributes:
        bucket: place in ``Assignment.buckets``; -1 for a pack, whose samples have a bucket each.
        first: first place in ``EpochPlan.order``.
        rows: int64 [B], index rows.
        passes: int64 [B], number of earlier draws of each sample.
        weight: B over the samples of the step on all ranks; 0 for a filler (``plan_epoch``). The weighted sum of all
            microbatches' mean losses is the mean over these samples.
        rank: rank that runs the microbatch.
        slot: place among the rank's microbatches of the step.
    """

    bucket: int
    first: int
    rows: IndexArray
    passes: IndexArray
    weight: float
    rank: int
    slot: int


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Microbatches of one optimizer step, of all ranks or of one, by rank and slot.

    Attributes:
        microbatches: planned microbatches; every rank has at least one.
        samples: number of samples of the step on all ranks.
    """

    microbatches: tuple[PlannedMicrobatch, ...]
    samples: int


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """Steps of one epoch or of the rest of one; a lazy sequence of ``StepPlan``.

    Attributes:
        assignment: buckets of the samples.
        draws: draws of the epoch.
        order: uint32 or int64 [N], draws grouped by bucket or by pack, so that each microbatch is one run of
            them. An array, or a lazy permutation.
        table: microbatches as runs of `order`.
        turns: uint32 or int64 [M], microbatch numbers in training order: steps x microbatches of a step.
        fillers: number of microbatches at the very end that repeat others with weight 0.
        carried: number of samples that fit into no pack of a step and begin the next one.
        layout: layout of a step over the ranks.
        shared: files in which the processes of a machine share placements, and the plan's name there.
    """

    assignment: Assignment
    draws: Draws
    order: IntegerArray | Permuted
    table: MicrobatchTable
    turns: IntegerArray | Permuted
    fillers: int
    carried: int
    layout: StepLayout
    shared: tuple[NodeFiles, str] | None = None

    def __len__(self) -> int:
        return len(self.turns) // self.layout.per_step

    @property
    def mean_samples(self) -> float:
        """Mean number of samples per step."""
        return len(self.order) / len(self)

    def __getitem__(self, step: int) -> StepPlan:
        return self.step(step)

    def __iter__(self) -> Iterator[StepPlan]:
        return (self[step] for step in range(len(self)))

    def place_step(self, step: int) -> tuple[IndexArray, Placement]:
        """Return a step's microbatches, int64 [ranks x m] places in ``turns``, and their placement."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of a plan of {len(self)} steps")
        window, place_in_window = divmod(step, self.layout.window)
        return _window(self, window)[place_in_window]

    def runs(self, members: IndexArray) -> MicrobatchRuns:
        """Return some microbatches as runs of ``order``."""
        return self.table.runs(self.turns[members])

    def costs(self, members: IndexArray) -> Floats:
        """Return the costs of some microbatches, by the assignment's cost model."""
        runs, cost = self.runs(members), self.assignment.cost
        if self.layout.regime == "pack":
            sample_costs = cost.sample_s(self.assignment.own_lengths(self.draws.rows[self.draws_of(members)]))
            return np.asarray(cost.fixed_s + np.add.reduceat(sample_costs, np.cumsum(runs.size) - runs.size))
        return seconds(cost, runs.size, np.array(self.assignment.lengths)[runs.bucket])

    def images(self, members: IndexArray) -> Flags:
        """Return True for microbatches that begin with an image; except in packs all samples are of one kind."""
        first = self.draws.rows[self.order[self.runs(members).start]]
        image_K = np.array([bucket.frames == 1 for bucket in self.assignment.buckets])
        return np.asarray(image_K[self.assignment.bucket_of[first]])

    def step(self, step: int, rank: int | None = None) -> StepPlan:
        """Return one step, or one rank's part of it, since a large cluster's step has thousands of microbatches."""
        members, placement = self.place_step(step)
        runs, counts = self.runs(members), self.counts(members)
        samples = int(runs.size[counts].sum())
        order = np.lexsort((placement.slot, placement.rank))
        if rank is not None:
            order = order[placement.rank[order] == rank]
        weights = np.where(counts, runs.size / samples, 0.0)
        columns = (*runs, weights, placement.rank, placement.slot)
        return StepPlan(
            microbatches=tuple(
                self._microbatch(*row)
                for row in zip(*(column[order].tolist() for column in columns), strict=True)
            ),
            samples=samples,
        )

    def members(self, step: int) -> IndexArray:
        """Return the microbatches of a step with one synchronization, as places in ``turns``."""
        return np.arange(step * self.layout.per_step, (step + 1) * self.layout.per_step)

    def counts(self, members: IndexArray) -> Flags:
        """Return False for fillers, whose samples count elsewhere."""
        return members < len(self.turns) - self.fillers

    def cut(self, step: int, indices: IndexArray, start: IndexArray, size: IndexArray, rank: int) -> StepPlan:
        """Return parts of a step's microbatches for one rank, in the given order; not for the slot regime.

        Args:
            step: number of the step in the plan.
            indices: int64 [P], microbatch of each part, as place in the step.
            start: int64 [P], number of the part's first sample in its microbatch.
            size: int64 [P], number of samples of each part.
            rank: rank that reads the parts.
        """
        members = self.members(step)
        runs, counts = self.runs(members), self.counts(members)
        samples = int(runs.size[counts].sum())
        weights = np.where(counts[indices], size / samples, 0.0)
        columns = (runs.start[indices] + start, size, runs.bucket[indices], weights)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return StepPlan(
            microbatches=tuple(
                self._microbatch(first, count, bucket, weight, rank, slot)
                for slot, (first, count, bucket, weight) in enumerate(rows)
            ),
            samples=samples,
        )

    def draws_of(self, members: IndexArray) -> IntegerArray:
        """Return the draws of some microbatches, one microbatch after the other."""
        runs = self.runs(members)
        return self.order[expand_ranges(runs.start, runs.size)]

    def drawn_before(self, step: int) -> Iterator[IntegerArray]:
        """Yield the draws that count in all earlier steps, a part at a time.

        In the slot regime a filler may run before the microbatch that it repeats, which is not over by that.
        """
        whole_windows = step // self.layout.window * self.layout.window
        earlier = whole_windows * self.layout.per_step
        for part in parts(earlier, _DRAWN_AT_ONCE):
            yield self._counting_draws(np.arange(part.start, min(part.stop, earlier)))
        for index in range(whole_windows, step):
            yield self._counting_draws(self.place_step(index)[0])

    def _counting_draws(self, members: IndexArray) -> IntegerArray:
        return self.draws_of(members[self.counts(members)])

    def stand_ins(self, micro: PlannedMicrobatch, index: int) -> Iterator[tuple[int, int]]:
        """Yield (row, passes) of replacements for sample ``index``: later draws of its bucket, each once."""
        bad, first = micro.rows.item(index), micro.first + len(micro.rows) + index
        for part in parts(len(self.order), _DRAWN_AT_ONCE):
            drawn = self.order[
                (first + np.arange(part.start, min(part.stop, len(self.order)))) % len(self.order)
            ]
            rows = self.draws.rows[drawn]
            fits = (self.assignment.bucket_of[rows] == self.assignment.bucket_of[bad]) & (rows != bad)
            yield from zip(rows[fits].tolist(), self.draws.passes[drawn[fits]].tolist(), strict=True)

    def _microbatch(
        self, first: int, size: int, bucket: int, weight: float, rank: int, slot: int
    ) -> PlannedMicrobatch:
        drawn = self.order[first : first + size]
        return PlannedMicrobatch(
            bucket=bucket,
            first=first,
            rows=self.draws.rows[drawn].astype(np.int64),
            passes=self.draws.passes[drawn],
            weight=weight,
            rank=rank,
            slot=slot,
        )


class DoneSegment(NamedTuple):
    """Finished first part of an epoch: a number of steps under an assignment and a layout.

    If the dataset changed afterwards, ``entering`` returns the draws of the next part, and those that are over (bool),
    for the draws that are over now.
    """

    assignment: Assignment
    layout: StepLayout
    steps: int
    shuffle: Shuffle = SORTED
    entering: Callable[[Flags], tuple[Draws, Flags]] | None = None


def plan_epoch(
    assignment: Assignment,
    seed: int,
    epoch: int,
    layout: StepLayout,
    done: Sequence[DoneSegment] = (),
    draws: Draws | None = None,
    shuffle: Shuffle = SORTED,
    near_N: IntegerArray | None = None,
    groups: Grouped | None = None,
) -> EpochPlan:
    """Plan an epoch, or the rest of one, in which every draw with a bucket is trained on exactly once.

    Samples are shuffled within their buckets and cut into microbatches of B; only the last one of a bucket may be
    smaller. The microbatches are shuffled, and each step's microbatches are divided among the ranks. If their number
    makes no whole steps, the largest are halved until it does. If nothing is left to halve (buckets of B = 1), repeated
    microbatches of weight 0 fill the last step.

    In the pack regime, samples of all buckets are shuffled together and packed step by step
    (`reelweave.loader.plan.packing`).

    With one synchronization per step, a step's samples depend only on its number of microbatches, ranks x m. So 8 x
    1, 4 x 2 and 2 x 4 train the same steps.

    Args:
        assignment: samples in buckets.
        seed: seed of the run, 0 to 2^64 - 1.
        epoch: number of the epoch, from 0.
        layout: layout of a step over the ranks.
        done: finished parts of this epoch, in order, under other assignments or layouts; the rest is planned.
        draws: draws of the epoch at its beginning; default: every row of the assignment once.
        shuffle: shuffle of samples within their buckets.
        near_N: place of each row in the order of the shards, for runs longer than 1; None is the row order.
        groups: groups of a permuted order from `group_draws`, to save computing them; only if nothing is done.

    Raises:
        UsageError: the buckets hold fewer samples than a step has microbatches, or a part has fewer steps than are
            done.
    """
    if draws is None:
        draws = Draws.once(numbers(len(assignment.bucket_of)), epoch)
    num_draws = len(draws.rows)
    draws, over_D = finish_parts(done, seed, epoch, draws, near_N)
    # After a change of the dataset few draws may be left, which fillers make a step of.
    _check_fills(max(num_draws, len(draws.rows)), layout, assignment.unassigned, drawn=True)
    rest = EpochPart(assignment, seed, epoch, len(done), layout, draws, over_D, shuffle, near_N)
    plan = _part(rest, groups)
    if not done:
        _check_fills(len(plan.order), layout, assignment.unassigned)
    return plan


def finish_parts(
    done: Sequence[DoneSegment], seed: int, epoch: int, draws: Draws, near_N: IntegerArray | None = None
) -> tuple[Draws, Flags]:
    """Return the draws of an epoch after finished parts, and which of them are over; arguments as of `plan_epoch`."""
    over_D, max_draws = np.zeros(len(draws.rows), np.bool_), 0
    for index, part in enumerate(done):
        max_draws = max(max_draws, len(draws.rows))
        _check_fills(max_draws, part.layout)
        before = _part(
            EpochPart(part.assignment, seed, epoch, index, part.layout, draws, over_D, part.shuffle, near_N)
        )
        if part.steps > len(before):
            raise UsageError(
                f"{part.steps} steps of part {index} of the epoch are done, but it has {len(before)} steps"
            )
        for drawn in before.drawn_before(part.steps):
            over_D[drawn] = True
        if part.entering is not None:
            draws, over_D = part.entering(over_D)
    return draws, over_D


def _check_fills(
    samples: int, layout: StepLayout, without: Unassigned | None = None, drawn: bool = False
) -> None:
    """Check that samples fill a step; ``drawn`` ones may lie in no bucket."""
    if samples < layout.per_step:
        remedy = ""
        if without is not None and (counts := without.counts()):
            reason, count = next(iter(counts.items()))
            remedy = f"; {len(without)} samples fit no bucket, {count} of them since {reason}"
        subject = "samples" if drawn and without else "samples in buckets"
        raise UsageError(
            f"{samples} {subject} cannot fill the {layout.per_step} microbatches of a step (ranks:"
            f" {layout.ranks}, of each: {layout.microbatches}): plan for fewer ranks or microbatches,"
            f" or give the buckets more shapes or the dataset more samples{remedy}"
        )


def _part(part: EpochPart, groups: Grouped | None = None) -> EpochPlan:
    """Plan the draws of a part that are not over at its beginning."""
    order: IntegerArray | Permuted
    turns: IntegerArray | Permuted
    if part.shuffle.order == "permuted" and part.layout.regime != "pack":
        groups = groups or grouped_draws(part.assignment, part.draws, part.over_D, part.near_N)
        order, table, turns, fillers = permuted_order(part, groups)
        carried = 0
    else:
        order, table, turns, fillers, carried = sorted_order(part)
    return EpochPlan(
        assignment=part.assignment,
        draws=part.draws,
        order=order,
        table=table,
        turns=turns,
        fillers=fillers,
        carried=carried,
        layout=part.layout,
    )


@lru_cache(maxsize=2)
def _window(plan: EpochPlan, window: int) -> list[tuple[IndexArray, Placement]]:
    """Place the steps of a window, in this process or in the machine's first process that needs them."""
    if plan.shared is None:
        columns = _place_window(plan, window)
    else:
        node, name = plan.shared
        columns = node.arrays(f"{name}.{window}", lambda: _place_window(plan, window))
        node.drop_arrays(f"{name}.{window - _KEPT_WINDOWS}")
    steps = zip(
        *(columns[name].reshape(-1, plan.layout.per_step) for name in ("member", "rank", "slot")), strict=True
    )
    ranks, regime = plan.layout.ranks, plan.layout.regime
    return [(member, Placement(rank, slot, ranks, regime)) for member, rank, slot in steps]


def _place_window(plan: EpochPlan, window: int) -> dict[str, IndexArray]:
    """Return microbatches, ranks and slots of a window's steps, step after step; int64 [steps x ranks x m]."""
    length = plan.layout.window * plan.layout.per_step
    members = np.arange(window * length, min((window + 1) * length, len(plan.turns)))
    placements = place(plan.layout, plan.costs(members), plan.runs(members).size, plan.images(members))
    return {
        "member": np.concatenate([members[selected] for selected, _ in placements]),
        "rank": np.concatenate([placement.rank for _, placement in placements]),
        "slot": np.concatenate([placement.slot for _, placement in placements]),
    }
