"""Blend of several datasets as one source of samples."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.argument_types import path_text
from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.blend.latents import common
from reelweave.loader.blend.mixture import Mixture
from reelweave.loader.blend.past import MAX_REVISIONS_CHARS, BlendRevision, fingerprint_of, past_revision
from reelweave.loader.blend.reading import is_blend_file
from reelweave.loader.blend.resolve import leaf_rows, resolve
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.blend.tree import Group, Leaf
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.plan_index import PlanIndex, join_indices
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.storage import StorageConfig


class Blend:
    """Datasets mixed by weights or repetitions; a picklable `reelweave.loader.blend.source.SampleSource`.

    `tree.epoch_draws` computes the number of draws of each leaf in an epoch, and `drawing.draw` their samples.

    Args:
        datasets: distinct datasets.
        leaves: sets of samples to draw from.
        tree: mixture of the leaves.
    """

    def __init__(self, datasets: Sequence[Dataset], leaves: Sequence[Leaf], tree: int | Group) -> None:
        self.datasets = tuple(datasets)
        self.leaves = tuple(leaves)
        self.tree = tree

    def __getstate__(self) -> dict[str, object]:
        return {"datasets": self.datasets, "leaves": self.leaves, "tree": self.tree}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of content and mixture, independent of locations and node names."""
        return fingerprint_of([dataset.fingerprint for dataset in self.datasets], self.leaves, self.tree)

    @cached_property
    def revisions(self) -> str | None:
        """Revision of each dataset, such as 0.3.1; None if there are too many for a state."""
        name = ".".join(str(dataset.manifest.revision) for dataset in self.datasets)
        return name if len(name) <= MAX_REVISIONS_CHARS else None

    @cached_property
    def now(self) -> BlendRevision:
        """Current revision of all datasets."""
        revisions = tuple(dataset.manifest.revision for dataset in self.datasets)
        return BlendRevision(self.datasets, revisions, self.mixture)

    def past(self, fingerprint: str, revisions: str) -> BlendRevision:
        """Return an earlier revision, see `reelweave.loader.blend.past.past_revision`."""
        return past_revision(self.datasets, self.leaves, self.tree, fingerprint, revisions)

    @cached_property
    def mixture(self) -> Mixture:
        """Leaves with their weights."""
        return Mixture(self._rows, self.tree)

    @cached_property
    def plan_index(self) -> PlanIndex:
        """Samples of all datasets, dataset after dataset, including those of no leaf."""
        return join_indices(
            [dataset.plan_index for dataset in self.datasets], np.diff(self._first_shards).tolist()
        )

    @cached_property
    def dataset_of_N(self) -> NDArray[np.int64]:
        """Number of each index row's dataset, int64 [N]."""
        return np.repeat(np.arange(len(self.datasets)), np.diff(self._starts))

    @cached_property
    def latents(self) -> Latents | None:
        """Description of the datasets' common latents; None if none has any.

        Raises:
            UsageError: the datasets' latents differ.
        """
        return common([(dataset.storage.root, dataset.latents) for dataset in self.datasets])

    def rows(self, leaf: int) -> NDArray[np.int64]:
        """Return the index rows of a leaf, rising."""
        return self._rows[leaf]

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard, see `Dataset.read_range`."""
        dataset, shard_index = self._of(shard, self._first_shards)
        return dataset.read_range(shard_index, offset, size)

    def shard_uri(self, shard: int) -> str:
        """Return the URI of a shard, for messages."""
        dataset, shard_index = self._of(shard, self._first_shards)
        return dataset.shard_uri(shard_index)

    def key(self, row_number: int) -> str:
        """Return the key of the sample in a row."""
        dataset, row = self._of(row_number, self._starts)
        return dataset.key(row)

    def dataset_of(self, row_number: int) -> int:
        """Return the number of a row's dataset."""
        return int(np.searchsorted(self._starts, row_number, side="right")) - 1

    def describe(self, row_numbers: IndexArray) -> pa.Table:
        """Return columns of some rows, see `Dataset.describe`."""
        dataset_of = np.searchsorted(self._starts, row_numbers, side="right") - 1
        order = np.argsort(dataset_of, kind="stable")
        tables = [
            self.datasets[index].describe(row_numbers[dataset_of == index] - self._starts[index])
            for index in np.unique(dataset_of).tolist()
        ]
        return pa.concat_tables(tables).take(pa.array(np.argsort(order, kind="stable")))

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
        """Parse the bytes of a sample, see `Dataset.clip`."""
        dataset, row = self._of(row_number, self._starts)
        return dataset.clip(row, region)

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """Return the draws of an epoch, leaf after leaf; see `reelweave.loader.blend.source.SampleSource`.

        Raises:
            UsageError: a node with a weight has no drawable sample, weights count tokens but lengths are missing, or an
                epoch is too large.
        """
        return self.mixture.draws(epoch, seed, lengths_N)

    def shares(self, lengths_N: NDArray[np.int64] | None = None) -> list[Fraction]:
        """Return the mean draws of each leaf per epoch, exact; for arguments and errors see `draws`."""
        return self.mixture.shares(lengths_N)

    def reweight(self, weights: Mapping[str, float] | Sequence[float]) -> "Blend":
        """Return the same blend with other weights, see `tree.reweight_blend`."""
        return Blend(self.datasets, self.leaves, self.mixture.reweight(weights).tree)

    def _of(self, joint_index: int, starts: NDArray[np.int64]) -> tuple[Dataset, int]:
        """Return the dataset of a row or shard, and its number there."""
        dataset_index = int(np.searchsorted(starts, joint_index, side="right")) - 1
        return self.datasets[dataset_index], joint_index - int(starts[dataset_index])

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """First row of each dataset, and the end."""
        return np.cumsum([0, *(len(dataset.plan_index) for dataset in self.datasets)])

    @cached_property
    def _first_shards(self) -> NDArray[np.int64]:
        """First shard of each dataset, and the end."""
        return np.cumsum([0, *(len(dataset.manifest.shards) for dataset in self.datasets)])

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        def make(leaf: Leaf) -> dict[str, NDArray[np.int64]]:
            ordered = leaf_rows(self.datasets[leaf.dataset], leaf.split, leaf.selection)
            return {"rows": np.sort(ordered[leaf.start : leaf.stop]) + self._starts[leaf.dataset]}

        rows_of = []
        for leaf in self.leaves:
            dataset, first = self.datasets[leaf.dataset], int(self._starts[leaf.dataset])
            range_of = [dataset.fingerprint, leaf.split, leaf.start, leaf.stop, first]
            content = json.dumps([*range_of, *([leaf.selection.to_json()] if leaf.selection else [])])
            name = f"{hashlib.sha256(content.encode()).hexdigest()}.leaf"
            rows_of.append(dataset.node.arrays(name, partial(make, leaf))["rows"])
        return rows_of


def open_blend(
    uri: str | os.PathLike[str], split: str = "train", config: StorageConfig | None = None
) -> Blend:
    """Open a blend file, ours or a MetadatasetV2 of Megatron-Energon, and every dataset of a split.

    Raises:
        UsageError: a file is invalid; names file and key.
        RunError: a named dataset does not exist or is unfinished.
    """
    resolved = resolve(path_text(uri, "uri"), split, config or StorageConfig())
    return Blend(resolved.datasets, resolved.leaves, resolved.tree)


def open_source(uri: str | os.PathLike[str], config: StorageConfig | None = None) -> SampleSource:
    """Open a dataset, or the train split of a blend file if the path ends in .yaml."""
    return (
        open_blend(uri, config=config) if is_blend_file(path_text(uri, "uri")) else open_dataset(uri, config)
    )
