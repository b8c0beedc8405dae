"""Several datasets as one source of samples."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.blend.config import MAX_EPOCH_SAMPLES
from loader.blend.drawing import Mask, draw
from loader.blend.reading import is_blend_file
from loader.blend.resolve import resolve, split_rows
from loader.blend.tree import Group, Held, Leaf, epoch_draws, reweighted
from loader.dataset import Dataset, open_dataset
from loader.errors import UsageError
from loader.source import Draws, Source
from loader.storage import StorageConfig


class Blend:
    """Datasets mixed by weights or repetitions; a `loader.source.Source`. Can be pickled, as a `Dataset` can.

    What an epoch holds: `tree.epoch_draws` says how much of each leaf, `drawing.draw` which samples.

    Args:
        datasets: different ones.
        leaves: what is drawn from.
        tree: how they are mixed.
    """

    def __init__(self, datasets: Sequence[Dataset], leaves: Sequence[Leaf], tree: int | Group) -> None:
        self.datasets = tuple(datasets)
        self.leaves = tuple(leaves)
        self.tree = tree

    def __getstate__(self) -> dict[str, object]:
        return {"datasets": self.datasets, "leaves": self.leaves, "tree": self.tree}

    @cached_property
    def fingerprint(self) -> str:
        """Fixes content and mixture, wherever the files lie and whatever the nodes are called."""
        leaves = [
            [self.datasets[leaf.dataset].fingerprint, leaf.split, leaf.start, leaf.stop]
            for leaf in self.leaves
        ]
        said = json.dumps({"leaves": leaves, "tree": _plain(self.tree)})
        return hashlib.sha256(said.encode()).hexdigest()

    @cached_property
    def index(self) -> pa.Table:
        """The rows of all datasets, one dataset after the other, without a copy; also rows that no leaf takes."""
        return pa.concat_tables([dataset.index for dataset in self.datasets])

    @cached_property
    def dataset_of_N(self) -> NDArray[np.int64]:  # noqa: N802 - array names carry their shape
        """For each row of the index the place of its dataset, int64 [N]."""
        return np.repeat(np.arange(len(self.datasets)), np.diff(self._starts))

    def rows(self, leaf: int) -> NDArray[np.int64]:
        """Index rows of a leaf, rising."""
        return self._rows[leaf]

    def read_member(self, row_number: int, suffix: str) -> bytes:
        """The content of one member of a sample; as `Dataset.read_member`."""
        number = int(np.searchsorted(self._starts, row_number, side="right")) - 1
        return self.datasets[number].read_member(row_number - int(self._starts[number]), suffix)

    def draws(self, epoch: int, seed: int, lengths_N: NDArray[np.int64] | None = None) -> Draws:
        """What an epoch holds, leaf after leaf; see `loader.source.Source`.

        Raises:
            UsageError: a node has a weight and no sample that can be drawn, weights count tokens and there are no
                lengths, or an epoch is too large.
        """
        share = self.shares(lengths_N)
        if sum(share) > MAX_EPOCH_SAMPLES:
            raise UsageError(f"an epoch of {float(sum(share)):.3g} samples is more than {MAX_EPOCH_SAMPLES}")
        return draw(self._rows, self._drawable(lengths_N), share, epoch, seed)

    def shares(self, lengths_N: NDArray[np.int64] | None = None) -> list[Fraction]:
        """Draws of each leaf in an epoch, on average over epochs, exact; arguments and errors as of `draws`."""
        if lengths_N is None and _counts_tokens(self.tree):
            raise UsageError("weight_by: tokens needs the lengths of the samples")
        held = [
            Held(int(drawable_n.sum()), 0 if lengths_N is None else int(lengths_N[rows_n].sum()))
            for rows_n, drawable_n in zip(self._rows, self._drawable(lengths_N), strict=True)
        ]
        share = epoch_draws(self.tree, held)
        return [share.get(leaf, Fraction()) for leaf in range(len(self.leaves))]

    def reweighted(self, weights: Mapping[str, float] | Sequence[float]) -> "Blend":
        """The same blend with other weights; see `tree.reweighted`."""
        return Blend(self.datasets, self.leaves, reweighted(self.tree, weights))

    def _drawable(self, lengths_N: NDArray[np.int64] | None) -> list[Mask]:
        return [
            np.ones(len(rows_n), np.bool_) if lengths_N is None else lengths_N[rows_n] > 0
            for rows_n in self._rows
        ]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each dataset starts in the index, and the end of it."""
        return np.cumsum([0, *(len(dataset.index) for dataset in self.datasets)])

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        ordered = {
            (leaf.dataset, leaf.split): split_rows(self.datasets[leaf.dataset], leaf.split)
            for leaf in self.leaves
        }
        return [
            np.sort(ordered[leaf.dataset, leaf.split][leaf.start : leaf.stop]) + self._starts[leaf.dataset]
            for leaf in self.leaves
        ]


def open_blend(
    uri: str | os.PathLike[str], split: str = "train", config: StorageConfig | None = None
) -> Blend:
    """Opens a blend file, ours or a MetadatasetV2 of Megatron-Energon, and every dataset that its split names.

    Raises:
        UsageError: a file says something wrong; names file and key.
        RunError: there is no finished dataset where it names one.
    """
    resolved = resolve(os.fspath(uri), split, config or StorageConfig())
    return Blend(resolved.datasets, resolved.leaves, resolved.tree)


def open_source(uri: str | os.PathLike[str], config: StorageConfig | None = None) -> Source:
    """A dataset, or the train split of a blend file where the path ends in .yaml."""
    return open_blend(uri, config=config) if is_blend_file(os.fspath(uri)) else open_dataset(uri, config)


def _counts_tokens(node: int | Group) -> bool:
    return isinstance(node, Group) and (
        node.by == "tokens" or any(_counts_tokens(part.node) for part in node.parts)
    )


def _plain(node: int | Group) -> Any:
    if isinstance(node, int):
        return node
    return [node.by, node.samples, [[str(part.factor), _plain(part.node)] for part in node.parts]]
