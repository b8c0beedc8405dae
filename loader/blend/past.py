"""Revisions of a blend: the current one, and earlier ones that plans were made on."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.blend.mixture import Mixture
from reelweave.loader.blend.resolve import leaf_rows
from reelweave.loader.blend.selection.choose import remembered_rows, rows_digest
from reelweave.loader.blend.selection.config import Selection
from reelweave.loader.blend.subset import SampleRange
from reelweave.loader.blend.tree import Group, Leaf
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.history import REMEMBERED
from reelweave.loader.dataset.plan_index import PlanIndex, join_indices
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import redact_uri

MAX_REVISIONS_CHARS = 256
"""Maximum size of the revisions of a blend's datasets, such as 0.3.1."""
MAX_TRIED = 8
"""Most removed samples of which each may have been selected or not."""
_GUESSES = 1024
"""Maximum number of guesses which splits and selections held removed samples."""


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
    described = [
        [
            datasets[leaf.dataset],
            leaf.split,
            leaf.start,
            leaf.stop,
            *([leaf.digest] if leaf.selection else []),
        ]
        for leaf in leaves
    ]
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
    pools = {
        _pool_of(leaf): _PastPool(datasets[leaf.dataset], revision_numbers[leaf.dataset], leaf)
        for leaf in leaves
    }
    # Whether samples that were removed since were in a pool is not known: try, until the fingerprint fits.
    guesses = product(*(pool.guesses() for pool in pools.values()))
    for guess in islice(guesses, _GUESSES):
        held = dict(zip(pools, guess, strict=True))
        try:
            then = [pools[_pool_of(leaf)].leaf_then(leaf, held[_pool_of(leaf)]) for leaf in leaves]
        except ValueError:
            continue
        if fingerprint_of(prints, then, tree).startswith(fingerprint):
            break
    else:
        raise UsageError(_other_blend(pools.values()))
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
        pool = _pool_of(leaf)
        rows.append(pools[pool].rows(leaf, held[pool]) + starts[leaf.dataset])
    return BlendRevision(datasets, revision_numbers, Mixture(rows, tree))


def _pool_of(leaf: Leaf) -> tuple[int, str | None, Selection]:
    return leaf.dataset, leaf.split, leaf.selection


class _PastPool:
    """Samples of a leaf's split and selection at a revision; whether samples that are gone were in it is not known.

    Attributes:
        gone: number of the revision's samples that were removed since.
        is_selected: True if the leaf draws a selection.
    """

    def __init__(self, dataset: Dataset, revision: int, leaf: Leaf) -> None:
        self.dataset, self.is_selected = dataset, bool(leaf.selection)
        now_n = dataset.rows_after(revision, dataset.manifest.revision)
        self._gone_rows = np.flatnonzero(now_n < 0)
        self.gone = len(self._gone_rows)
        row_of = np.full(len(dataset.plan_index), -1, np.int64)
        row_of[now_n[now_n >= 0]] = np.flatnonzero(now_n >= 0)
        # A quota depends on the samples that there were.
        ordered = row_of[leaf_rows(dataset, leaf.split, leaf.selection, among=row_of >= 0)]
        self._ordered = ordered[ordered >= 0]
        # Where samples are gone, the machine may remember which it drew; the fingerprint proves it.
        self._remembered: IndexArray | None = None
        if self.gone and self.is_selected:
            self._remembered = remembered_rows(dataset, revision, leaf.selection, leaf.split)
        if self._remembered is not None:
            is_gone = np.isin(self._remembered, self._gone_rows)
            self._ordered, self._remembered = self._remembered[~is_gone], self._remembered[is_gone]

    def guesses(self) -> Iterator[IndexArray]:
        """Yield the rows that are gone and may have been in the pool: all, none, or of a few any part.

        The checksum of a selection tells which guess is right; without one only numbers would.
        """
        if self._remembered is not None:
            yield self._remembered
            return
        yield self._gone_rows
        if not self.gone:
            return
        yield self._gone_rows[:0]
        if self.is_selected and self.gone <= MAX_TRIED:
            for bits in range(1, 2**self.gone - 1):
                yield self._gone_rows[[bits >> place & 1 == 1 for place in range(self.gone)]]

    def leaf_then(self, leaf: Leaf, held: IndexArray) -> Leaf:
        """Return a leaf as it was, if these rows were in it that are gone.

        Raises:
            ValueError: its range exceeds the samples.
        """
        start, stop = leaf.span.of(len(self._ordered) + len(held))
        digest = rows_digest(np.sort(np.concatenate([self._ordered, held]))) if self.is_selected else ""
        return replace(leaf, start=start, stop=stop, digest=digest)

    def rows(self, leaf: Leaf, held: IndexArray) -> IndexArray:
        """Return the rows of a leaf, rising.

        Raises:
            UsageError: the leaf is a range, and samples are gone.
        """
        if not self.gone:
            return np.sort(self._ordered[leaf.start : leaf.stop])
        if leaf.span != SampleRange():
            raise UsageError(_of_a_range(self.dataset))
        return np.sort(np.concatenate([self._ordered, held]))


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


def _other_blend(pools: Iterable[_PastPool]) -> str:
    pools = list(pools)
    unknown = sorted({redact_uri(pool.dataset.storage.root) for pool in pools if pool.gone > 1})
    if unknown:
        return (
            f"the blend or its selection was changed, or samples were removed from {', '.join(unknown)} of which some"
            " were drawn and others not, by their split or a selection, and which ones is not known any more"
        )
    words = "the blend has other weights, ranges or datasets than it had"
    if any(pool.is_selected for pool in pools):
        words += ", or other conditions, or what they go by was changed in the index of samples that it held"
    return words


def _plain(node: int | Group) -> Any:
    if isinstance(node, int):
        return node
    return [node.by, node.samples, [[str(part.factor), _plain(part.node)] for part in node.parts]]
