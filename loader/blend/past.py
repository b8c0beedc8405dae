"""Revisions of a blend: the current one, and earlier ones that plans were made on."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.blend.mixture import Mixture
from reelweave.loader.blend.resolve import split_rows
from reelweave.loader.blend.subset import SampleRange
from reelweave.loader.blend.tree import Group, Leaf
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.history import REMEMBERED
from reelweave.loader.dataset.plan_index import PlanIndex, join_indices
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import redact_uri

MAX_REVISIONS_CHARS = 256
"""Maximum size of the revisions of a blend's datasets, such as 0.3.1."""
_GUESSES = 1024
"""Maximum number of guesses which splits held removed samples."""


@dataclass(frozen=True, eq=False)
class BlendRevision:
    """Blend with each dataset at one of its revisions; shapes of samples, without their locations.

    Attributes:
        datasets: datasets of the blend, as they are now.
        numbers: revision of each dataset.
        mixture: leaves of that time.
    """

    datasets: Sequence[Dataset]
    numbers: tuple[int, ...]
    mixture: Mixture

    @cached_property
    def plan_index(self) -> PlanIndex:
        """Samples of all datasets, dataset after dataset."""
        pairs = zip(self.datasets, self.numbers, strict=True)
        return join_indices(
            [dataset.plan_index_of(revision) for dataset, revision in pairs], [0] * len(self.datasets)
        )

    def rows_after(self, later: "BlendRevision") -> IndexArray:
        """Map each row to its row in a later revision, int64 [N]; -1 for removed samples."""
        rows_found, first = [], 0
        for dataset, old, new in zip(self.datasets, self.numbers, later.numbers, strict=True):
            dataset_rows = dataset.rows_after(old, new)
            rows_found.append(np.where(dataset_rows < 0, -1, dataset_rows + first))
            first += len(dataset.plan_index_of(new))
        return np.concatenate(rows_found)

    def changed_leaves(self, later: "BlendRevision", leaves: Sequence[Leaf]) -> list[bool]:
        """Return for each leaf whether its dataset is another revision later."""
        return [self.numbers[leaf.dataset] != later.numbers[leaf.dataset] for leaf in leaves]


def fingerprint_of(datasets: Sequence[str], leaves: Sequence[Leaf], tree: int | Group) -> str:
    """Return the hash of a blend's content and mixture, from the fingerprints of its datasets."""
    described = [[datasets[leaf.dataset], leaf.split, leaf.start, leaf.stop] for leaf in leaves]
    content = json.dumps({"leaves": described, "tree": _plain(tree)})
    return hashlib.sha256(content.encode()).hexdigest()


def past_revision(
    datasets: Sequence[Dataset], leaves: Sequence[Leaf], tree: int | Group, fingerprint: str, revisions: str
) -> BlendRevision:
    """Return an earlier revision of a blend.

    Args:
        datasets: datasets of the blend.
        leaves: leaves of the blend, as they are now.
        tree: mixture of the leaves.
        fingerprint: beginning of the blend's fingerprint at that time.
        revisions: revision of each dataset at that time, such as 0.3.1.

    Raises:
        UsageError: the blend was another one, or which samples its leaves held cannot be told any more.
    """
    revision_numbers = tuple(map(int, revisions.split(".")))
    if len(revision_numbers) != len(datasets):
        raise UsageError(
            f"the blend had {len(revision_numbers)} datasets and has {len(datasets)} now; add new samples to a dataset"
            " that is there"
        )
    prints = [
        _fingerprint(dataset, revision) for dataset, revision in zip(datasets, revision_numbers, strict=True)
    ]
    splits = {
        (leaf.dataset, leaf.split): _PastSplit(
            datasets[leaf.dataset], revision_numbers[leaf.dataset], leaf.split
        )
        for leaf in leaves
    }
    # Whether samples that were removed since were in a split is not known: try both, until the fingerprint fits.
    guesses = product(*((True, False) if split.gone else (True,) for split in splits.values()))
    for guess in islice(guesses, _GUESSES):
        held = dict(zip(splits, guess, strict=True))
        try:
            then = [
                _then(leaf, splits[leaf.dataset, leaf.split].size(held[leaf.dataset, leaf.split]))
                for leaf in leaves
            ]
        except ValueError:
            continue
        if fingerprint_of(prints, then, tree).startswith(fingerprint):
            break
    else:
        raise UsageError(_other_blend(splits.values()))
    # Rows of the leaves, numbered through all datasets as they were.
    starts = np.cumsum(
        [
            0,
            *(
                len(each.plan_index_of(revision))
                for each, revision in zip(datasets, revision_numbers, strict=True)
            ),
        ]
    )
    rows = []
    for leaf in then:
        key = leaf.dataset, leaf.split
        rows.append(splits[key].rows(leaf, held[key]) + starts[leaf.dataset])
    return BlendRevision(datasets, revision_numbers, Mixture(rows, tree))


class _PastSplit:
    """Split of a dataset at a revision; whether samples that are gone were in it is not known.

    Attributes:
        gone: number of the revision's samples that were removed since.
    """

    def __init__(self, dataset: Dataset, revision: int, split: str) -> None:
        self.dataset, self._split = dataset, split
        now_n = dataset.rows_after(revision, dataset.manifest.revision)
        self._gone_n: Flags = now_n < 0
        self.gone = int(self._gone_n.sum())
        row_of = np.full(len(dataset.plan_index), -1, np.int64)
        row_of[now_n[~self._gone_n]] = np.flatnonzero(~self._gone_n)
        ordered = row_of[split_rows(dataset, split)]
        self._ordered = ordered[ordered >= 0]

    def size(self, with_gone: bool) -> int:
        """Return the number of samples, if those that are gone were in the split, or if they were not."""
        return len(self._ordered) + self.gone * with_gone

    def rows(self, leaf: Leaf, with_gone: bool) -> IndexArray:
        """Return the rows of a leaf, rising.

        Raises:
            UsageError: the leaf is a range, and samples are gone.
        """
        if not self.gone:
            return np.sort(self._ordered[leaf.start : leaf.stop])
        if leaf.span != SampleRange():
            raise UsageError(_of_a_range(self.dataset))
        gone = np.flatnonzero(self._gone_n) if with_gone else np.zeros(0, np.int64)
        return np.sort(np.concatenate([self._ordered, gone]))


def _then(leaf: Leaf, samples: int) -> Leaf:
    start, stop = leaf.span.of(samples)
    return replace(leaf, start=start, stop=stop)


def _fingerprint(dataset: Dataset, revision: int) -> str:
    """Return the fingerprint of a revision of a dataset.

    Raises:
        UsageError: the dataset does not remember the revision.
    """
    fingerprint = dataset.fingerprint_of(revision)
    if fingerprint is None:
        raise UsageError(
            f"the blend took samples of revision {revision} of {redact_uri(dataset.storage.root)}, which is at revision"
            f" {dataset.manifest.revision} now and remembers {REMEMBERED}"
        )
    return fingerprint


def _of_a_range(dataset: Dataset) -> str:
    return (
        f"samples were removed from {redact_uri(dataset.storage.root)}, of which the blend takes a range, and where"
        " they lay is not known any more; ranges of a dataset can grow, but not shrink"
    )


def _other_blend(splits: Iterable[_PastSplit]) -> str:
    unknown = sorted({redact_uri(split.dataset.storage.root) for split in splits if split.gone > 1})
    if unknown:
        return (
            f"the blend was changed, or samples of several splits were removed from {', '.join(unknown)}, and which"
            " split held them is not known any more"
        )
    return "the blend has other weights, ranges or datasets than it had"


def _plain(node: int | Group) -> Any:
    if isinstance(node, int):
        return node
    return [node.by, node.samples, [[str(part.factor), _plain(part.node)] for part in node.parts]]
