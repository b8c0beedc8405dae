"""Step plans: which samples each rank trains on in each step of an epoch, the same on every rank.

Random words (`loader.draws`) serve as sort keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from loader.arrays import Flags, Floats, Places
from loader.buckets import Assignment
from loader.cost import seconds
from loader.draws import words
from loader.errors import UsageError
from loader.pieces import Pieces, cut, filled, shuffled
from loader.policy import Division, Placement, place
from loader.source import Draws


@dataclass(frozen=True, eq=False)
class PlannedMicrobatch:
    """What one rank trains on at once.

    Attributes:
        bucket: place in ``Assignment.buckets``.
        first: place in ``EpochPlan.order``.
        rows: int64 [B], index rows.
        passes: int64 [B], how often each was drawn before.
        weight: B over the samples of the step on all ranks, so that the weighted sum of all microbatches' mean
            losses is the mean over the step's samples. 0 marks a filler (``plan_epoch``).
        rank: that runs it.
        slot: its place in the order of the rank's microbatches of the step.
    """

    bucket: int
    first: int
    rows: Places
    passes: Places
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
    """The steps of one epoch or of the rest of one; a sequence of ``StepPlan`` that holds no object per step.

    Attributes:
        draws: of the epoch.
        order: int64 [N], draws, grouped by bucket, so that each microbatch is one run of them.
        groups: int64 [K + 1], where each bucket begins in ``order``, and the end.
        pieces: the microbatches, M of them: steps x microbatches of a step.
        costs: float64 [M], of each.
        images: bool [M], whether it holds images.
        fillers: how many microbatches at the very end repeat another one with weight 0.
        division: how a step is divided over the ranks.
    """

    draws: Draws
    order: Places
    groups: Places
    pieces: Pieces
    costs: Floats
    images: Flags
    fillers: int
    division: Division

    def __len__(self) -> int:
        return len(self.costs) // self.division.per_step

    def __getitem__(self, step: int) -> StepPlan:
        return self.step(step)

    def __iter__(self) -> Iterator[StepPlan]:
        return (self[step] for step in range(len(self)))

    def placed(self, step: int) -> tuple[Places, Placement]:
        """The microbatches of a step, int64 [ranks x m], and where each of them runs."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of a plan of {len(self)} steps")
        window, place_in_window = divmod(step, self.division.window)
        return _window(self, window)[place_in_window]

    def step(self, step: int, rank: int | None = None) -> StepPlan:
        """One step; of one rank alone, where it is given: a large cluster's step has thousands of microbatches."""
        members, placement = self.placed(step)
        counted = len(self.costs) - self.fillers
        samples = int(self.pieces.size[members[members < counted]].sum())
        order = np.lexsort((placement.slot, placement.rank))
        if rank is not None:
            order = order[placement.rank[order] == rank]
        return StepPlan(
            microbatches=tuple(
                self._microbatch(int(members[at]), placement.rank.item(at), placement.slot.item(at), samples)
                for at in order.tolist()
            ),
            samples=samples,
        )

    def drawn(self, members: Places) -> Places:
        """The draws of some microbatches, one microbatch after the other."""
        size = self.pieces.size[members]
        reach = np.cumsum(size)
        places: Places = np.repeat(self.pieces.start[members] - (reach - size), size) + np.arange(size.sum())
        return self.order[places]

    def drawn_before(self, step: int) -> Places:
        """The draws of all earlier steps."""
        whole_windows = step // self.division.window * self.division.window
        members = [np.arange(whole_windows * self.division.per_step)]
        members += [self.placed(number)[0] for number in range(whole_windows, step)]
        return self.drawn(np.concatenate(members))

    def stand_ins(self, micro: PlannedMicrobatch, number: int) -> Iterator[tuple[int, int]]:
        """Rows and passes that may take the place of sample ``number``: what follows in its bucket, no draw twice."""
        lowest, behind = self.groups[micro.bucket : micro.bucket + 2].tolist()
        bad, first = micro.rows.item(number), micro.first + len(micro.rows) + number
        for at in range(first, first + behind - lowest):
            draw = self.order.item(lowest + (at - lowest) % (behind - lowest))
            if (row := self.draws.rows.item(draw)) != bad:
                yield row, self.draws.passes.item(draw)

    def _microbatch(self, number: int, rank: int, slot: int, samples: int) -> PlannedMicrobatch:
        start, size, bucket = (column.item(number) for column in self.pieces)
        drawn = self.order[start : start + size]
        return PlannedMicrobatch(
            bucket=bucket,
            first=start,
            rows=self.draws.rows[drawn],
            passes=self.draws.passes[drawn],
            weight=size / samples if number < len(self.costs) - self.fillers else 0.0,
            rank=rank,
            slot=slot,
        )


class Done(NamedTuple):
    """The first part of an epoch, or the next one, that is over: so many steps under that assignment and division."""

    assignment: Assignment
    division: Division
    steps: int


def plan_epoch(
    assignment: Assignment,
    seed: int,
    epoch: int,
    division: Division,
    done: Sequence[Done] = (),
    draws: Draws | None = None,
) -> EpochPlan:
    """Plans an epoch, or the rest of one, in which every draw that has a bucket is trained on exactly once.

    Samples are shuffled within their buckets and cut into microbatches of B (the last of a bucket may be
    smaller), the microbatches are shuffled, and as many as a step takes are divided over the ranks. Where their
    number is no multiple of that, the largest are halved until it is. Where nothing is left to halve (buckets
    of B = 1), the last step is filled up with repeated microbatches of weight 0.

    Where ranks wait once a step, which samples a step holds follows from the number of its microbatches alone,
    ranks x m: 8 x 1, 4 x 2 and 2 x 4 train the same steps.

    Args:
        assignment: samples in buckets.
        seed: of the whole run, 0 to 2^64 - 1.
        epoch: from 0.
        division: of a step over the ranks.
        done: what is over of this epoch, in order, where assignment or division were others before; what is left
            is planned.
        draws: what the epoch holds; every row of the assignment once, where it is not given.

    Raises:
        UsageError: there are fewer samples in buckets than microbatches in a step, or fewer steps in a part than are
            done of it.
    """
    if draws is None:
        rows = np.arange(len(assignment.bucket_of))
        draws = Draws(rows, np.full_like(rows, epoch), np.zeros_like(rows))
    left_L = np.arange(len(draws.rows))
    for one in (*(part.division for part in done), division):
        _check_fills(len(left_L), one)
    for number, part in enumerate(done):
        over = _part(part.assignment, seed, epoch, number, part.division, draws, left_L)
        if part.steps > len(over):
            raise UsageError(
                f"{part.steps} steps of part {number} of the epoch are done, but it has {len(over)} steps"
            )
        left_L = np.setdiff1d(left_L, over.drawn_before(part.steps))
    plan = _part(assignment, seed, epoch, len(done), division, draws, left_L)
    if not done:
        _check_fills(len(plan.order), division)
    return plan


def _check_fills(samples: int, division: Division) -> None:
    if samples < division.per_step:
        raise UsageError(
            f"{samples} samples in buckets cannot fill the {division.per_step} microbatches of a step (ranks:"
            f" {division.ranks}, of each: {division.microbatches}): use fewer of them or allow more shapes"
        )


def _part(
    assignment: Assignment, seed: int, epoch: int, part: int, division: Division, draws: Draws, left_L: Places
) -> EpochPlan:
    """Plans the draws that are left when the ``part``-th part of an epoch begins."""
    bucket_L = assignment.bucket_of[draws.rows[left_L]]
    order, groups, pieces = cut(assignment, bucket_L, words(seed, epoch, 2 * part, len(left_L)))
    pieces = filled(pieces, division.per_step)
    pieces = shuffled(pieces, words(seed, epoch, 2 * part + 1, len(pieces.start)), division.run)
    fillers = -len(pieces.start) % division.per_step
    # The last step repeats its own microbatches.
    last = np.arange(len(pieces.start) // division.per_step * division.per_step, len(pieces.start))
    pieces = pieces.where(np.concatenate([np.arange(len(pieces.start)), np.resize(last, fillers)]))
    image_K = np.array([bucket.frames == 1 for bucket in assignment.buckets])
    return EpochPlan(
        draws=draws,
        order=left_L[order],
        groups=groups,
        pieces=pieces,
        costs=seconds(assignment.cost, pieces.size, np.array(assignment.lengths)[pieces.bucket]),
        images=image_K[pieces.bucket],
        fillers=fillers,
        division=division,
    )


@lru_cache(maxsize=2)
def _window(plan: EpochPlan, number: int) -> list[tuple[Places, Placement]]:
    first = number * plan.division.window * plan.division.per_step
    numbers = np.arange(first, min(first + plan.division.window * plan.division.per_step, len(plan.costs)))
    placed = place(plan.division, plan.costs[numbers], plan.pieces.size[numbers], plan.images[numbers])
    return [(numbers[own], placement) for own, placement in placed]
