"""Draws of an epoch from a dataset or a blend, whose revisions may enter within it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray, IntegerArray, numbers
from reelweave.loader.blend import Blend
from reelweave.loader.blend.drawing import Progress
from reelweave.loader.blend.entering import BlendEpochDraws, Entry, progress_entered
from reelweave.loader.blend.mixture import Mixture
from reelweave.loader.blend.past import BlendRevision
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_plan import DoneSegment, finish_parts
from reelweave.loader.plan.position import EpochSegment, Era, Position, Setting

Weights = Mapping[str, float] | Sequence[float] | None


class EpochSource(Protocol):
    """Source of one epoch's draws, which later revisions may change.

    Attributes:
        draws: draws at the beginning of the epoch.
    """

    draws: Draws

    def enter(self, earlier: str | None, later: str | None, over_D: Flags) -> tuple[Draws, Flags]:
        """Return the draws of the epoch in a later revision, and which of them are over.

        Args:
            earlier: name of the revision before, as in `reelweave.loader.plan.position.Setting`.
            later: name of the revision that enters.
            over_D: bool [D], True for the finished draws of the revision before.
        """


class SourceDraws(Protocol):
    """Draws and plan data of the revisions of a source."""

    def plan_index(self, revision: str | None) -> PlanIndex:
        """Return the plan data of a revision; None is the current one.

        Raises:
            UsageError: the source has no record of the revision.
        """

    def epoch(self, position: Position) -> EpochSource:
        """Return the draws of a position's epoch.

        Raises:
            UsageError: the source has no record of a revision.
        """


def done_segments(
    parts: Sequence[EpochSegment],
    following: str | None,
    assignment: Callable[[Setting], Assignment],
    epoch: EpochSource,
) -> list[DoneSegment]:
    """Return finished segments of an epoch.

    Args:
        parts: the segments.
        following: revision of the segment behind them.
        assignment: function that returns the buckets of a setting.
        epoch: draws of the epoch.
    """
    names = [*(part.setting.revision for part in parts), following]
    return [
        DoneSegment(
            assignment(part.setting),
            part.layout,
            part.steps,
            part.setting.shuffle,
            None if earlier == later else partial(epoch.enter, earlier, later),
        )
        for part, (earlier, later) in zip(parts, pairwise(names), strict=True)
    ]


class DatasetDraws:
    """Draws of a dataset: each sample once an epoch.

    Args:
        source: the dataset.
        rows: function that returns the numbers of its rows.
    """

    def __init__(self, source: SampleSource, rows: Callable[[], IntegerArray]) -> None:
        self._source, self._rows = source, rows

    def plan_index(self, revision: str | None) -> PlanIndex:
        """Return the plan data of a revision, see `SourceDraws`."""
        if revision is None:
            return self._source.plan_index
        dataset, revision_number = self._find_revision(revision)
        return dataset.plan_index_of(revision_number)

    def epoch(self, position: Position) -> EpochSource:
        """Return the draws of a position's epoch, see `SourceDraws`."""
        revision = position.parts[0].setting.revision
        rows = self._rows() if revision is None else numbers(len(self.plan_index(revision)))
        return _DatasetEpoch(self, Draws.once(rows, position.epoch), position.epoch)

    def rows_after(self, earlier: str | None, later: str | None) -> IndexArray:
        """Map each row of a revision to its row in a later one, int64 [N]; -1 for removed samples.

        Raises:
            UsageError: the dataset has no record of a revision.
        """
        (dataset, old), (_, new) = self._find_revision(earlier), self._find_revision(later)
        return dataset.rows_after(old, new)

    def _find_revision(self, revision: str | None) -> tuple[Dataset, int]:
        """Return the dataset and the number of a revision."""
        source = self._source
        revision_number = (
            source.revision_of(revision or source.fingerprint) if isinstance(source, Dataset) else None
        )
        if revision_number is None or not isinstance(source, Dataset):
            raise UsageError(
                f"cannot resume: steps of this epoch were planned on revision {revision} of the dataset, which it does"
                " not remember any more"
            )
        return source, revision_number


class _DatasetEpoch:
    def __init__(self, source: DatasetDraws, draws: Draws, epoch: int) -> None:
        self._source, self.draws, self._epoch = source, draws, epoch

    def enter(self, earlier: str | None, later: str | None, over_D: Flags) -> tuple[Draws, Flags]:
        rows_now = self._source.rows_after(earlier, later)[over_D]
        over = np.zeros(len(self._source.plan_index(later)), np.bool_)
        over[rows_now[rows_now >= 0]] = True
        return Draws.once(numbers(len(over)), self._epoch), over


class BlendDraws:
    """Draws of a blend: passes over each leaf, which go on from epoch to epoch and from revision to revision.

    Args:
        blend: the blend.
        seed: seed of the run.
        weights: weights of each curriculum stage.
        assignment: function that returns the buckets of a setting.
        lengths: function that returns the lengths of all samples, for a curriculum stage and a revision.
    """

    def __init__(
        self,
        blend: Blend,
        seed: int,
        weights: Sequence[Weights],
        assignment: Callable[[Setting], Assignment],
        lengths: Callable[[int, str | None], IndexArray],
    ) -> None:
        self._blend, self._seed, self._weights = blend, seed, weights
        self._assignment, self._lengths = assignment, lengths
        self._revisions: dict[str | None, BlendRevision] = {}
        self._begun: tuple[tuple[Era, ...], Mixture] | None = None

    def revision(self, name: str | None) -> BlendRevision:
        """Return a revision of the blend by its name.

        Raises:
            UsageError: the blend has no record of it.
        """
        if name not in self._revisions:
            if name is None:
                self._revisions[None] = self._blend.now
            else:
                fingerprint, _, revision_numbers = name.partition(":")
                try:
                    self._revisions[name] = self._blend.past(fingerprint, revision_numbers)
                except UsageError as error:
                    raise UsageError(f"cannot resume: {error}") from error
        return self._revisions[name]

    def plan_index(self, revision: str | None) -> PlanIndex:
        """Return the plan data of a revision, see `SourceDraws`."""
        return self._blend.plan_index if revision is None else self.revision(revision).plan_index

    def epoch(self, position: Position) -> "EpochSource":
        """Return the draws of a position's epoch, see `SourceDraws`."""
        era = position.eras[-1]
        return self._epoch(position.eras, era.stage, position.epoch - era.epoch)

    def settle(self, position: Position) -> Position:
        """Return the same position without eras that its draws do not need any more, if they are few numbers."""
        last = position.eras[-1]
        if len(position.eras) == 1 or not position.changed:
            return position
        lengths_N = self._lengths(last.stage, last.revision)
        mixture = self._weigh(self._mixture(position.eras), last.stage)
        progress = mixture.progress_after(position.epoch - last.epoch, self._seed, lengths_N)
        if any(draw.counts_n is not None for draw in progress):
            return position
        begun = tuple((draw.passes, draw.skipped) for draw in progress)
        settled = replace(position, eras=(last._replace(epoch=position.epoch, parts=(), begun=begun),))
        return settled if settled.fits_a_state else position

    def entry(self, earlier: str | None, later: str | None, stage: int) -> Entry:
        """Return what enters with a later revision, under the weights of a stage."""
        old, new = self.revision(earlier), self.revision(later)
        return Entry(
            self._weigh(new.mixture, stage),
            self._lengths(stage, later),
            old.rows_after(new),
            old.changed_leaves(new, self._blend.leaves),
        )

    def _epoch(self, eras: tuple[Era, ...], stage: int, epoch: int) -> "_BlendEpoch":
        mixture = self._weigh(self._mixture(eras), stage)
        lengths_N = self._lengths(stage, eras[-1].revision)
        return _BlendEpoch(self, stage, mixture, epoch, self._seed, lengths_N)

    def _mixture(self, eras: tuple[Era, ...]) -> Mixture:
        """Return the mixture at the beginning of the last era."""
        if self._begun is None or self._begun[0] != eras:
            self._begun = eras, self._mixture_after(eras)
        return self._begun[1]

    def _mixture_after(self, eras: tuple[Era, ...]) -> Mixture:
        *before, era = eras
        mixture_then = self.revision(era.revision).mixture
        # The state says itself how far each leaf was.
        if era.begun:
            if len(era.begun) != len(mixture_then.rows):
                raise UsageError(
                    f"not a state of the loader: eras: {len(era.begun)} leaves of {len(mixture_then.rows)}"
                )
            return replace(
                mixture_then, begun=tuple(Progress(passes, skipped=skipped) for passes, skipped in era.begun)
            )
        if not before:
            return mixture_then
        # Else it follows from the eras before: from the parts of an epoch that was left halfway.
        last = before[-1]
        if era.parts:
            epoch = self._epoch(tuple(before), last.stage, era.epoch - 1 - last.epoch)
            done = done_segments(era.parts, era.revision, self._assignment, epoch)
            finish_parts(done, self._seed, era.epoch - 1, epoch.draws)
            return replace(mixture_then, begun=epoch.drawn.progress_after)
        # Or from whole epochs since then, and from what entered between them.
        mixture = self._weigh(self._mixture_after(tuple(before)), last.stage)
        lengths_N = self._lengths(last.stage, last.revision)
        progress = mixture.progress_after(era.epoch - last.epoch, self._seed, lengths_N)
        if last.revision != era.revision:
            entry = self.entry(last.revision, era.revision, last.stage)
            progress = progress_entered(progress, mixture, lengths_N, entry, self._seed)
        return replace(mixture_then, begun=progress)

    def _weigh(self, mixture: Mixture, stage: int) -> Mixture:
        weights = self._weights[stage]
        return mixture if weights is None else mixture.reweight(weights)


class _BlendEpoch:
    def __init__(
        self, source: BlendDraws, stage: int, mixture: Mixture, epoch: int, seed: int, lengths_N: IndexArray
    ) -> None:
        self._source, self._stage = source, stage
        self.draws = mixture.draws(epoch, seed, lengths_N)
        self._planned = partial(BlendEpochDraws.plan, mixture, epoch, seed, lengths_N)

    @cached_property
    def drawn(self) -> BlendEpochDraws:
        """Draws of each leaf, which only a change of a dataset needs: they take 8 bytes a sample."""
        return self._planned(self.draws)

    def enter(self, earlier: str | None, later: str | None, over_D: Flags) -> tuple[Draws, Flags]:
        self.drawn, over = self.drawn.enter(over_D, self._source.entry(earlier, later, self._stage))
        return self.drawn.draws, over
