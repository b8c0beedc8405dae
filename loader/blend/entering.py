"""Draws of an epoch of a blend whose datasets change: within it, or since the epoch before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import NamedTuple, Self

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.blend.drawing import LeafSequence, Mask, Progress, draw
from reelweave.loader.blend.mixture import Mixture
from reelweave.loader.blend.tree import weighted_leaves
from reelweave.loader.dataset.epoch_draws import Draws


class Entry(NamedTuple):
    """Later revision of some of a blend's datasets.

    Attributes:
        mixture: mixture of the later revision, with the same leaves; its own progress does not count.
        lengths_N: lengths of its samples, see `Mixture.draws`.
        rows_after: int64 [rows before], row in the later revision, -1 if removed.
        changed: True for each leaf with a changed dataset.
    """

    mixture: Mixture
    lengths_N: IndexArray
    rows_after: IndexArray
    changed: Sequence[bool]


def progress_entered(
    progress: Sequence[Progress], before: Mixture, lengths_N: IndexArray, entry: Entry, seed: int
) -> tuple[Progress, ...]:
    """Return the draws of each leaf before an epoch that begins with a later revision.

    Args:
        progress: draws of each leaf before that epoch, in the earlier revision.
        before: mixture of the earlier revision.
        lengths_N: lengths of its samples.
        entry: the later revision.
        seed: seed of the run.
    """
    leaf_progress = []
    old = replace(before, begun=tuple(progress)).sequences(seed, lengths_N)
    for index, sequence in enumerate(old):
        if not entry.changed[index]:
            leaf_progress.append(sequence.progress)
            continue
        due = sequence.due(Fraction(), 0)
        at = max(0, floor(due))
        counts_n = sequence.counts(at)
        moved = _Moved(entry, index, sequence.rows_n, int(counts_n.min()))
        entered_progress = Progress(counts_n=moved.of(counts_n), skipped=sequence.progress.skipped)
        leaf_progress.append(moved.sequence(entered_progress, seed).progress_at(0, due - at))
    return tuple(leaf_progress)


@dataclass(frozen=True, eq=False)
class _LeafEpoch:
    """Draws of a leaf in an epoch, from its beginning or from the last change of its dataset on.

    Attributes:
        sequence: sequence of the leaf's draws.
        start: first draw in the sequence.
        count: number of draws.
        owed_before: draws that were due at the beginning of the epoch, less than one.
        owed_after: draws that are due at its end.
        begun_n: int64 [n], passes that each row was through at the beginning of the epoch.
    """

    sequence: LeafSequence
    start: int
    count: int
    owed_before: Fraction
    owed_after: Fraction
    begun_n: IndexArray

    def enter(
        self, trained_n: IndexArray, moved: "_Moved", share: Fraction | None, seed: int
    ) -> "_LeafEpoch":
        """Return what is left in a later revision of the leaf's dataset.

        Args:
            trained_n: int64 [n], finished draws of each row.
            moved: the later revision.
            share: draws of an epoch, if they follow from the samples; None: their number stays.
            seed: seed of the run.
        """
        counts_n = self.sequence.counts(self.start) + trained_n
        planned_n = self.sequence.counts(self.start + self.count)
        entered_progress = Progress(
            counts_n=moved.of(counts_n),
            skipped=self.sequence.progress.skipped + max(0, int((planned_n - counts_n).max())),
        )
        begun_n, sequence = moved.of(self.begun_n), moved.sequence(entered_progress, seed)
        if share is None:
            remaining, owed = self.count - int(trained_n.sum()), self.owed_after
        else:
            due = self.owed_before + share - int((moved.of(counts_n) - begun_n).sum())
            remaining = max(0, floor(due))
            owed = due - remaining
        return _LeafEpoch(sequence, 0, remaining, self.owed_before, owed, begun_n)


@dataclass(frozen=True, eq=False)
class BlendEpochDraws:
    """Draws of an epoch, with what a later revision needs to know of them.

    Attributes:
        draws: draws of the epoch; those of changed datasets without the finished ones before the change.
        seed: seed of the run.
        leaves: draws of each leaf.
    """

    draws: Draws
    seed: int
    leaves: tuple[_LeafEpoch, ...]

    @classmethod
    def plan(cls, mixture: Mixture, epoch: int, seed: int, lengths_N: IndexArray, draws: Draws) -> Self:
        """Return the draws of an epoch at its beginning, ``draws`` of `Mixture.draws`, with their leaves."""
        leaves = []
        for sequence, share in zip(
            mixture.sequences(seed, lengths_N), mixture.shares(lengths_N), strict=True
        ):
            (start, stop), due = (
                sequence.span(share, epoch),
                (sequence.due(share, epoch), sequence.due(share, epoch + 1)),
            )
            leaves.append(
                _LeafEpoch(
                    sequence, start, stop - start, due[0] - start, due[1] - stop, sequence.counts(start)
                )
            )
        return cls(draws, seed, tuple(leaves))

    @property
    def progress_after(self) -> tuple[Progress, ...]:
        """Draws of each leaf at the end of the epoch."""
        return tuple(
            leaf.sequence.progress_at(leaf.start + leaf.count, leaf.owed_after) for leaf in self.leaves
        )

    def enter(self, over_D: Flags, entry: Entry) -> tuple[Self, Flags]:
        """Return the draws of the epoch in a later revision, and which of them are over.

        Leaves of unchanged datasets keep their draws. In a changed one the draws go on with the samples that are
        there, first with those that were drawn least. Weights leave the number of a leaf's draws in the epoch as it
        was; without weights every sample has its repetitions.

        Args:
            over_D: bool [D], True for finished draws.
            entry: the later revision.
        """
        shares, weighted = entry.mixture.shares(entry.lengths_N), weighted_leaves(entry.mixture.tree)
        leaves, entering = [], []
        # Leaves of unchanged datasets only move to their new rows; the others draw what is left anew.
        for index, leaf in enumerate(self.leaves):
            moved = _Moved(entry, index, leaf.sequence.rows_n, int(leaf.begun_n.min()))
            if not entry.changed[index]:
                leaves.append(replace(leaf, sequence=moved.sequence(leaf.sequence.progress, self.seed)))
                continue
            rows_d = self.draws.rows[over_D & (self.draws.leaf == index)]
            places_d = np.searchsorted(leaf.sequence.rows_n, rows_d)
            trained_n = np.bincount(places_d, minlength=len(leaf.sequence.rows_n))
            share = None if index in weighted else shares[index]
            leaves.append(leaf.enter(trained_n, moved, share, self.seed))
            entering.append(index)
        # Draws that stay keep their order, and new ones come behind them.
        stays_D = ~np.array(entry.changed, np.bool_)[self.draws.leaf]
        fresh = draw(
            [leaves[index].sequence for index in entering],
            [(0, leaves[index].count) for index in entering],
            entering,
        )
        draws = Draws(
            np.concatenate([entry.rows_after[self.draws.rows[stays_D]], fresh.rows]),
            np.concatenate([self.draws.passes[stays_D], fresh.passes]),
            np.concatenate([self.draws.leaf[stays_D], fresh.leaf]),
        )
        over = np.concatenate([over_D[stays_D], np.zeros(len(fresh.rows), np.bool_)])
        return replace(self, draws=draws, leaves=tuple(leaves)), over


class _Moved:
    """Rows of a leaf in a later revision.

    Args:
        entry: the later revision.
        index: number of the leaf.
        rows_n: int64 [n], index rows of the leaf before.
        level: passes of samples that come.
    """

    def __init__(self, entry: Entry, index: int, rows_n: IndexArray, level: int) -> None:
        self._rows_m, self._number, self._level = entry.mixture.rows[index], index, level
        self._drawable_m: Mask = entry.lengths_N[self._rows_m] > 0
        now_n = entry.rows_after[rows_n]
        place_n = np.minimum(np.searchsorted(self._rows_m, now_n), max(0, len(self._rows_m) - 1))
        self._stays_n = self._rows_m[place_n] == now_n if len(self._rows_m) else np.zeros(len(rows_n), bool)
        self._place_n = place_n[self._stays_n]

    def of(self, counts_n: IndexArray) -> IndexArray:
        """Return passes of the rows before as those of the rows in the later revision, int64 [m]."""
        counts_m = np.full(len(self._rows_m), self._level, np.int64)
        counts_m[self._place_n] = counts_n[self._stays_n]
        return counts_m

    def sequence(self, progress: Progress, seed: int) -> LeafSequence:
        """Return the leaf's sequence in the later revision."""
        return LeafSequence(self._rows_m, self._drawable_m, progress, self._number, seed)
