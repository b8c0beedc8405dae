"""Mixture of leaves: how many draws an epoch has of each, and which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.blend.config import MAX_EPOCH_SAMPLES
from reelweave.loader.blend.drawing import LeafSequence, Mask, Progress, draw
from reelweave.loader.blend.tree import Group, LeafSize, epoch_draws, reweight_blend
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.errors import UsageError


@dataclass(frozen=True, eq=False)
class Mixture:
    """Leaves of a blend with their weights, and the draws before epoch 0.

    Attributes:
        rows: int64 [n] per leaf, rising index rows; leaves may overlap.
        tree: mixture of the leaves.
        begun: draws of each leaf before epoch 0; empty: none.
    """

    rows: Sequence[IndexArray]
    tree: int | Group
    begun: tuple[Progress, ...] = ()

    @property
    def progress(self) -> tuple[Progress, ...]:
        """Draws of each leaf before epoch 0."""
        return self.begun or (Progress(),) * len(self.rows)

    def draws(self, epoch: int, seed: int, lengths_N: IndexArray | None = None) -> Draws:
        """Return the draws of an epoch, see `reelweave.loader.blend.blend.Blend.draws`."""
        share = self.shares(lengths_N)
        if sum(share) > MAX_EPOCH_SAMPLES:
            raise UsageError(f"an epoch of {float(sum(share)):.3g} samples is more than {MAX_EPOCH_SAMPLES}")
        sequences = self.sequences(seed, lengths_N)
        spans = [
            sequence.span(leaf_share, epoch) for sequence, leaf_share in zip(sequences, share, strict=True)
        ]
        return draw(sequences, spans, range(len(sequences)))

    def shares(self, lengths_N: IndexArray | None = None) -> list[Fraction]:
        """Return the mean draws of each leaf per epoch, exact; see `reelweave.loader.blend.blend.Blend.draws`."""
        if lengths_N is None and _counts_tokens(self.tree):
            raise UsageError("weight_by: tokens needs the lengths of the samples")
        held = [
            LeafSize(int(drawable_n.sum()), 0 if lengths_N is None else int(lengths_N[rows_n].sum()))
            for rows_n, drawable_n in zip(self.rows, self._drawable(lengths_N), strict=True)
        ]
        share = epoch_draws(self.tree, held)
        return [share.get(leaf, Fraction()) for leaf in range(len(self.rows))]

    def sequences(self, seed: int, lengths_N: IndexArray | None = None) -> list[LeafSequence]:
        """Return the sequence of draws of each leaf."""
        parts = zip(self.rows, self._drawable(lengths_N), self.progress, strict=True)
        return [LeafSequence(*part, leaf, seed) for leaf, part in enumerate(parts)]

    def reweight(self, weights: Mapping[str, float] | Sequence[float]) -> Self:
        """Return the same mixture with other weights, see `tree.reweight_blend`."""
        return replace(self, tree=reweight_blend(self.tree, weights))

    def progress_after(
        self, epochs: int, seed: int, lengths_N: IndexArray | None = None
    ) -> tuple[Progress, ...]:
        """Return the draws of each leaf before epoch ``epochs``; for arguments see `draws`.

        With new weights or lengths, a leaf drawn one and a half times continues in the middle of its second pass.
        """
        progress = []
        for sequence, share in zip(self.sequences(seed, lengths_N), self.shares(lengths_N), strict=True):
            due = sequence.due(share, epochs)
            if sequence.progress.counts_n is None:
                passes = sequence.progress.passes + share * epochs / max(1, sequence.held)
                progress.append(replace(sequence.progress, passes=passes))
            else:
                at = sequence.span(share, epochs)[0]
                progress.append(sequence.progress_at(at, due - at))
        return tuple(progress)

    def _drawable(self, lengths_N: IndexArray | None) -> list[Mask]:
        return [
            np.ones(len(rows_n), np.bool_) if lengths_N is None else lengths_N[rows_n] > 0
            for rows_n in self.rows
        ]


def _counts_tokens(node: int | Group) -> bool:
    return isinstance(node, Group) and (
        node.by == "tokens" or any(_counts_tokens(part.node) for part in node.parts)
    )
