"""Draws of a leaf: an endless sequence of passes over its samples, each in its own random order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.philox import shuffle_indices
from reelweave.loader.dataset.epoch_draws import Draws

_PURPOSE = 1 << 32  # first Philox stream of leaves; plans use smaller ones

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Progress:
    """Draws of a leaf before epoch 0 of its sequence.

    Attributes:
        passes: passes over the leaf, all in the order of the sequence; unless `counts_n` is given.
        counts_n: int64 [n], passes that each row is through. Samples that came in the middle of a pass are behind those
            that it has drawn.
        owed: with `counts_n`, draws that are due, a fraction; negative if more were drawn than were due.
        skipped: number of passes by whose numbers samples were drawn out of turn; they are not used again.
    """

    passes: Fraction = Fraction()
    counts_n: Rows | None = None
    owed: Fraction = Fraction()
    skipped: int = 0


class LeafSequence:
    """Endless sequence of a leaf's draws: pass after pass, over the rows that are not ahead of it.

    Args:
        rows_n: int64 [n], index rows of the leaf.
        drawable_n: bool [n], True for rows that can be drawn.
        progress: draws before the sequence begins.
        leaf: number of the leaf.
        seed: seed of the run.
    """

    def __init__(self, rows_n: Rows, drawable_n: Mask, progress: Progress, leaf: int, seed: int) -> None:
        self.rows_n, self.progress = rows_n, progress
        self._drawable_n, self._leaf, self._seed = drawable_n, leaf, seed
        self.held = int(drawable_n.sum())
        self._counts_n = progress.counts_n
        counts_n = np.zeros(0, np.int64) if progress.counts_n is None else progress.counts_n[drawable_n]
        self._first, self._level = (int(counts_n.min()), int(counts_n.max())) if len(counts_n) else (0, 0)
        self._last: tuple[int, Rows] | None = None

    def span(self, share: Fraction, epoch: int) -> tuple[int, int]:
        """Return the part of the sequence that an epoch draws, for a number of draws per epoch."""
        start, stop = (floor(max(Fraction(), self.due(share, index))) for index in (epoch, epoch + 1))
        return start, stop

    def due(self, share: Fraction, epochs: int) -> Fraction:
        """Return the exact number of draws that are due after some epochs."""
        progress = self.progress
        before = progress.passes * max(1, self.held) if progress.counts_n is None else progress.owed
        return before + share * epochs

    def pieces(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield places in `rows_n` of a part of the sequence, a pass at a time, so that no piece holds one twice."""
        while start < stop:
            pass_index, drawn = self._pass_at(start)
            piece = self._order(pass_index)[drawn : drawn + stop - start]
            yield piece
            start += len(piece)

    def counts(self, at: int) -> Rows:
        """Return the number of passes that each row is through at a place of the sequence, int64 [n]."""
        pass_index, drawn = self._pass_at(at)
        counts_n = np.full(len(self.rows_n), pass_index, np.int64)
        if self._counts_n is not None:
            counts_n = np.maximum(counts_n, self._counts_n)
        if drawn:
            counts_n[self._order(pass_index)[:drawn]] += 1
        return counts_n

    def progress_at(self, at: int, owed: Fraction) -> Progress:
        """Return the progress at a place of the sequence, in few numbers if they suffice.

        Args:
            at: place in the sequence.
            owed: draws that are due there.
        """
        pass_index, drawn = self._pass_at(at)
        if self.held and owed >= 0 and (self._counts_n is None or pass_index >= self._level):
            passes = pass_index + (drawn + owed) / self.held
            return Progress(passes, skipped=self.progress.skipped)
        return replace(self.progress, passes=Fraction(), counts_n=self.counts(at), owed=owed)

    def _pass_at(self, at: int) -> tuple[int, int]:
        """Return the number of the pass at a place of the sequence, and how many it has drawn before."""
        pass_index = self._first
        while pass_index < self._level:
            size = int((self._drawable_n & (self._counts_or_0 <= pass_index)).sum())
            if at < size:
                return pass_index, at
            pass_index, at = pass_index + 1, at - size
        passed, drawn = divmod(at, max(1, self.held))
        return pass_index + passed, drawn

    @property
    def _counts_or_0(self) -> Rows:
        return np.zeros(1, np.int64) if self._counts_n is None else self._counts_n

    def _order(self, pass_index: int) -> Rows:
        """Return a pass: a permutation of all places, without those that cannot be drawn or are ahead."""
        if self._last is None or self._last[0] != pass_index:
            order_n = shuffle_indices(self._seed, pass_index, _PURPOSE + self._leaf, len(self.rows_n)).astype(
                np.int64
            )
            open_n = self._drawable_n & (self._counts_or_0 <= pass_index)
            self._last = pass_index, order_n[open_n[order_n]]
        return self._last[1]


def draw(sequences: Sequence[LeafSequence], spans: Sequence[tuple[int, int]], leaves: Sequence[int]) -> Draws:
    """Return parts of the sequences of leaves that may overlap, leaf after leaf.

    Args:
        sequences: sequences of leaves.
        spans: start and stop of the part of each.
        leaves: number of each leaf.
    """
    before_N = np.zeros(
        1 + max((int(sequence.rows_n.max(initial=0)) for sequence in sequences), default=0), np.int64
    )
    pieces: list[tuple[int, Rows]] = []
    for leaf, sequence, (start, stop) in zip(leaves, sequences, spans, strict=True):
        before_N[sequence.rows_n] += sequence.counts(start) + sequence.progress.skipped
        pieces += ((leaf, sequence.rows_n[piece]) for piece in sequence.pieces(start, stop))
    passes = []
    for _, rows_d in pieces:
        passes.append(before_N[rows_d])
        before_N[rows_d] += 1
    none = np.zeros(0, np.int64)
    return Draws(
        np.concatenate([none, *(rows_d for _, rows_d in pieces)]),
        np.concatenate([none, *passes]),
        np.repeat(np.array([leaf for leaf, _ in pieces], np.int64), [len(rows_d) for _, rows_d in pieces]),
    )
