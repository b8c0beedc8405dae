"""Blend of several datasets as one source of samples."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.blend.config import MAX_EPOCH_SAMPLES
from loader.blend.drawing import Mask, draw
from loader.blend.latents import common
from loader.blend.reading import is_blend_file
from loader.blend.resolve import resolve, split_rows
from loader.blend.source import SampleSource
from loader.blend.tree import Group, Leaf, LeafSize, epoch_draws, reweighted
from loader.dataset import Dataset, open_dataset
from loader.dataset.draws import Draws
from loader.dataset.latents import Latents
from loader.dataset.plan_index import PlanIndex, joined
from loader.dataset.samples.clip import TrainingSample
from loader.errors import UsageError
from loader.storage import StorageConfig


class Blend:
    """Datasets mixed by weights or repetitions; a `loader.blend.source.SampleSource`. Picklable, as a `Dataset` is.

    `tree.epoch_draws` computes the number of draws of each leaf in an epoch, and `drawing.draw` their samples.

    Args:
        datasets: distinct datasets.
        leaves: sets of samples to draw from.
        tree: mixture of the leaves.
        begun: passes over each leaf before epoch 0; default: none.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        leaves: Sequence[Leaf],
        tree: int | Group,
        begun: Sequence[Fraction] = (),
    ) -> None:
        self.datasets = tuple(datasets)
        self.leaves = tuple(leaves)
        self.tree = tree
        self.begun = tuple(begun) or (Fraction(),) * len(self.leaves)

    def __getstate__(self) -> dict[str, object]:
        return {
            "datasets": self.datasets,
            "leaves": self.leaves,
            "tree": self.tree,
            "begun": self.begun,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hash of content and mixture, independent of locations and node names."""
        leaves = [
            [self.datasets[leaf.dataset].fingerprint, leaf.split, leaf.start, leaf.stop]
            for leaf in self.leaves
        ]
        said = json.dumps({"leaves": leaves, "tree": _plain(self.tree)})
        return hashlib.sha256(said.encode()).hexdigest()

    @cached_property
    def plan_index(self) -> PlanIndex:
        """Samples of all datasets, dataset after dataset, including those of no leaf."""
        return joined([dataset.plan_index for dataset in self.datasets], np.diff(self._first_shards).tolist())

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
        dataset, own = self._of(shard, self._first_shards)
        return dataset.read_range(own, offset, size)

    def shard_uri(self, shard: int) -> str:
        """Return the URI of a shard, for messages."""
        dataset, own = self._of(shard, self._first_shards)
        return dataset.shard_uri(own)

    def key(self, row_number: int) -> str:
        """Return the key of the sample in a row."""
        dataset, own = self._of(row_number, self._starts)
        return dataset.key(own)

    def clip(self, row_number: int, region: bytes | memoryview) -> TrainingSample:
        """Parse the bytes of a sample, see `Dataset.clip`."""
        dataset, own = self._of(row_number, self._starts)
        return dataset.clip(own, region)

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """Return the draws of an epoch, leaf after leaf; see `loader.blend.source.SampleSource`.

        Raises:
            UsageError: a node with a weight has no drawable sample, weights count tokens but lengths are missing, or an
                epoch is too large.
        """
        share = self.shares(lengths_N)
        if sum(share) > MAX_EPOCH_SAMPLES:
            raise UsageError(f"an epoch of {float(sum(share)):.3g} samples is more than {MAX_EPOCH_SAMPLES}")
        return draw(self._rows, self._drawable(lengths_N), share, epoch, seed, self.begun)

    def shares(self, lengths_N: NDArray[np.int64] | None = None) -> list[Fraction]:
        """Return the mean draws of each leaf per epoch, exact; for arguments and errors see `draws`."""
        if lengths_N is None and _counts_tokens(self.tree):
            raise UsageError("weight_by: tokens needs the lengths of the samples")
        held = [
            LeafSize(int(drawable_n.sum()), 0 if lengths_N is None else int(lengths_N[rows_n].sum()))
            for rows_n, drawable_n in zip(self._rows, self._drawable(lengths_N), strict=True)
        ]
        share = epoch_draws(self.tree, held)
        return [share.get(leaf, Fraction()) for leaf in range(len(self.leaves))]

    def reweighted(self, weights: Mapping[str, float] | Sequence[float]) -> "Blend":
        """Return the same blend with other weights, see `tree.reweighted`."""
        return Blend(self.datasets, self.leaves, reweighted(self.tree, weights), self.begun)

    def passes_after(self, epochs: int, lengths_N: NDArray[np.int64] | None = None) -> list[Fraction]:
        """Return the exact number of passes over each leaf before epoch ``epochs``; for arguments see `draws`."""
        held = (max(1, int(drawable_n.sum())) for drawable_n in self._drawable(lengths_N))
        parts = zip(self.begun, self.shares(lengths_N), held, strict=True)
        return [before + share * epochs / samples for before, share, samples in parts]

    def begun_after(self, passes: Sequence[Fraction]) -> "Blend":
        """Return the same blend, with given passes over each leaf before epoch 0; see `passes_after`.

        With new weights or lengths, a leaf drawn one and a half times continues in the middle of its second pass.
        """
        return Blend(self.datasets, self.leaves, self.tree, passes)

    def _drawable(self, lengths_N: NDArray[np.int64] | None) -> list[Mask]:
        return [
            np.ones(len(rows_n), np.bool_) if lengths_N is None else lengths_N[rows_n] > 0
            for rows_n in self._rows
        ]

    def _of(self, number: int, starts: NDArray[np.int64]) -> tuple[Dataset, int]:
        """Return the dataset of a row or shard, and its number there."""
        place = int(np.searchsorted(starts, number, side="right")) - 1
        return self.datasets[place], number - int(starts[place])

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
            ordered = split_rows(self.datasets[leaf.dataset], leaf.split)
            return {"rows": np.sort(ordered[leaf.start : leaf.stop]) + self._starts[leaf.dataset]}

        found = []
        for leaf in self.leaves:
            dataset, first = self.datasets[leaf.dataset], int(self._starts[leaf.dataset])
            said = json.dumps([dataset.fingerprint, leaf.split, leaf.start, leaf.stop, first])
            name = f"{hashlib.sha256(said.encode()).hexdigest()}.leaf"
            found.append(dataset.node.arrays(name, partial(make, leaf))["rows"])
        return found


def open_blend(
    uri: str | os.PathLike[str], split: str = "train", config: StorageConfig | None = None
) -> Blend:
    """Open a blend file, ours or a MetadatasetV2 of Megatron-Energon, and every dataset of a split.

    Raises:
        UsageError: a file is invalid; names file and key.
        RunError: a named dataset does not exist or is unfinished.
    """
    resolved = resolve(os.fspath(uri), split, config or StorageConfig())
    return Blend(resolved.datasets, resolved.leaves, resolved.tree)


def open_source(uri: str | os.PathLike[str], config: StorageConfig | None = None) -> SampleSource:
    """Open a dataset, or the train split of a blend file if the path ends in .yaml."""
    return open_blend(uri, config=config) if is_blend_file(os.fspath(uri)) else open_dataset(uri, config)


def _counts_tokens(node: int | Group) -> bool:
    return isinstance(node, Group) and (
        node.by == "tokens" or any(_counts_tokens(part.node) for part in node.parts)
    )


def _plain(node: int | Group) -> Any:
    if isinstance(node, int):
        return node
    return [node.by, node.samples, [[str(part.factor), _plain(part.node)] for part in node.parts]]
