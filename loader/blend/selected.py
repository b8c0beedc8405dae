"""A dataset or a blend of which a selection is drawn."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.blend.blend import Blend
from reelweave.loader.blend.resolve import leaf_rows
from reelweave.loader.blend.selection.choose import Chosen, choose, rows_digest
from reelweave.loader.blend.selection.config import Selection
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.blend.subset import SampleRange
from reelweave.loader.blend.tree import Leaf
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import redact_uri


def select(source: SampleSource, selection: Selection) -> SampleSource:
    """Return the source of which only a selection is drawn; the same source if the selection is empty.

    The selection of a dataset is a blend of one leaf, so that revisions of the dataset enter as in any blend.

    Args:
        source: a dataset, or a blend, each of whose leaves selects by itself and by ``selection``.
        selection: the selection; of a split without a part, train is drawn.

    Raises:
        UsageError: no sample is selected, no sample has a field that is named, or a leaf has a split or quota itself.
    """
    if not selection:
        return source
    if selection.split and selection.split.part is None:
        part = selection.split.model_copy(update={"part": "train"})
        selection = replace(selection, split=part)
    if isinstance(source, Blend):
        leaves = [_selected_leaf(leaf, source.datasets[leaf.dataset], selection) for leaf in source.leaves]
        return Blend(source.datasets, leaves, source.tree)
    if not isinstance(source, Dataset):
        raise UsageError(
            "a selection (where, split, quota) is of a dataset or a blend; this source is another one"
        )
    whole = Leaf("all", 0, None, 0, 0, {}, SampleRange())
    return Blend([source], [_selected_leaf(whole, source, selection)], 0)


class SelectionCount(NamedTuple):
    """Numbers of a leaf's selection.

    Attributes:
        dataset: URI of the dataset.
        words: the selection in words.
        chosen: what it chooses.
        split_by: field that names the groups of its split; "" without one.
    """

    dataset: str
    words: str
    chosen: Chosen
    split_by: str = ""

    @classmethod
    def of(cls, dataset: Dataset, split: str | None, selection: Selection) -> "SelectionCount":
        """Return the numbers of a selection of a dataset's split."""
        by = selection.split.by if selection.split else ""
        chosen = choose(dataset, selection, split)
        return cls(redact_uri(dataset.storage.root), selection.words, chosen, by)

    @property
    def is_by_sample(self) -> bool:
        """True if each group of the split has one sample, as where the source of samples is not known."""
        chosen = self.chosen
        return 1 < chosen.groups == chosen.grouped

    @property
    def sentence(self) -> str:
        """Sentence with the numbers of chosen samples and of those left out for want of a value."""
        chosen = self.chosen
        count = f"{len(chosen.rows):,} of {chosen.samples:,}"
        share = len(chosen.rows) / max(1, chosen.samples)
        parts = [f"{count} samples of {self.dataset} are drawn ({share:.2%}): {self.words}"]
        if chosen.unknown:
            parts.append(f"{chosen.unknown:,} are left out since they lack a value that decides")
        if chosen.groups:
            parts.append(f"{chosen.groups:,} groups")
        if self.is_by_sample:
            parts.append(
                f"each group has one sample: a split by {self.split_by} is one by sample, and keeps no siblings"
                " together"
            )
        if chosen.groupless:
            parts.append(
                f"{chosen.groupless:,} have no value that names their group: they are in train, and in no quota"
            )
        return "; ".join(parts)


def selection_counts(source: SampleSource) -> Iterator[SelectionCount]:
    """Yield the numbers of each selection of a source, once where leaves share it."""
    if not isinstance(source, Blend):
        return
    pools = dict.fromkeys((leaf.dataset, leaf.split, leaf.selection) for leaf in source.leaves)
    for dataset, split, selection in pools:
        if selection:
            yield SelectionCount.of(source.datasets[dataset], split, selection)


@dataclass(frozen=True, eq=False)
class SelectedSamples:
    """Samples of a dataset, all or those that a selection draws.

    Attributes:
        source: dataset, or blend that draws the selection alone.
        rows: int64 [n], index rows of the selection; None for all samples.
        sentence: what the selection draws of how many, in words; "" without one.
    """

    source: SampleSource
    rows: IndexArray | None = None
    sentence: str = ""

    @classmethod
    def of(cls, dataset: Dataset, selection: Selection) -> "SelectedSamples":
        """Return what a selection draws of a dataset.

        Raises:
            UsageError: it draws nothing, or names what no sample has.
        """
        source = select(dataset, selection)
        counts = list(selection_counts(source))
        return cls(source, counts[0].chosen.rows, counts[0].sentence) if counts else cls(source)

    @property
    def index(self) -> PlanIndex:
        """Plan index of the samples alone."""
        index = self.source.plan_index
        if self.rows is None:
            return index
        columns: dict[str, Any] = {name: values[self.rows] for name, values in index.columns().items()}
        return PlanIndex(**columns)

    def column(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values of the samples, of a column of the dataset's index."""
        return values if self.rows is None else values.take(pa.array(self.rows))


def _selected_leaf(leaf: Leaf, dataset: Dataset, selection: Selection) -> Leaf:
    try:
        selection = selection.within(leaf.selection)
    except UsageError as error:
        raise UsageError(f"stream: {selection.words}: {leaf.name} {error}") from error
    rows = leaf_rows(dataset, leaf.split, selection)
    try:
        start, stop = leaf.span.of(len(rows))
    except ValueError as error:
        raise UsageError(f"{leaf.name}: the subset {error} {selection.words}") from error
    if start == stop:
        counted = SelectionCount.of(dataset, leaf.split, selection)
        raise UsageError(f"the selection leaves no sample: {counted.sentence}")
    return replace(leaf, start=start, stop=stop, selection=selection, digest=rows_digest(np.sort(rows)))
