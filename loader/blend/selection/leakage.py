"""Groups that stand on both sides of a split: what a model trains on and is measured by."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags
from reelweave.loader.blend.selection.choose import choose, group_values, hash_values
from reelweave.loader.blend.selection.config import GroupSplit, Selection
from reelweave.loader.blend.selection.names import field_name
from reelweave.loader.dataset import Dataset

COPIES = "sha256"
"""Column whose groups are samples with the same media, byte for byte."""

_EXAMPLES = 3


@dataclass(frozen=True)
class Leak:
    """Groups of a field on the sides of a split.

    Attributes:
        by: column, score or attribute that names the groups.
        groups: number of groups.
        both: number of groups on both sides.
        val_samples: samples of val whose group has samples in train.
        groupless: samples without a value.
        examples: values of some groups on both sides.
    """

    by: str
    groups: int
    both: int
    val_samples: int
    groupless: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Leakage:
    """Sides of a split, and what stands on both.

    Attributes:
        split: the split in words.
        train: number of samples in train.
        val: number of samples in val.
        leaks: groups by field.
    """

    split: str
    train: int
    val: int
    leaks: tuple[Leak, ...]

    @property
    def sentences(self) -> list[str]:
        """Numbers in words, a sentence for each field."""
        return [
            f"{self.split}: {_say_leak(leak)}"
            + (f", such as {', '.join(leak.examples)}" if leak.examples else "")
            for leak in self.leaks
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self)


def leakage(dataset: Dataset, split: GroupSplit | None, groups: Sequence[str]) -> Leakage | None:
    """Return which groups stand on both sides of a split; None where there is only one side.

    Args:
        dataset: the dataset.
        split: split by groups; None for the split that the index names.
        groups: fields that name groups; copies of media are counted beside them.

    Raises:
        UsageError: no sample has the field of the split.
    """
    is_val = val_mask(dataset, split)
    val, train = int(is_val.sum()), int((~is_val).sum())
    if not val or not train:
        return None
    fields = dict.fromkeys([*([split.by] if split else []), *groups, COPIES])
    words = "split of the index" if split is None else f"split by {split.by}"
    return Leakage(words, train, val, tuple(_leak(dataset, by, is_val) for by in fields))


def val_mask(dataset: Dataset, split: GroupSplit | None) -> Flags:
    """Return True for each row of the index that is in val; arguments as of `leakage`."""
    if split is None:
        column = dataset.read_columns("index", ["split"]).column("split")
        return np.array(pc.equal(column, "val").to_numpy(), np.bool_)
    mask = np.zeros(len(dataset), np.bool_)
    mask[choose(dataset, Selection(split=split.model_copy(update={"part": "val"}))).rows] = True
    return mask


def _leak(dataset: Dataset, by: str, is_val: Flags) -> Leak:
    hashes, sides, groupless = [np.zeros(0, np.uint64)], [np.zeros(0, np.bool_)], 0
    for values, part in _values(dataset, by):
        present = np.flatnonzero(np.array(pc.is_valid(values).to_numpy(), np.bool_))
        groupless += len(values) - len(present)
        hashes.append(hash_values(0, values.take(pa.array(present))))
        sides.append(is_val[part][present])
    group_N, val_N = np.concatenate(hashes), np.concatenate(sides)
    group_U, index_N = np.unique(group_N, return_inverse=True)
    in_val_U = np.bincount(index_N, val_N, len(group_U)) > 0
    both_U = in_val_U & (np.bincount(index_N, ~val_N, len(group_U)) > 0)
    leak = Leak(by, len(group_U), int(both_U.sum()), int((both_U[index_N] & val_N).sum()), groupless, ())
    if by == COPIES:  # checksums say nothing to a person
        return leak
    return replace(leak, examples=_examples(dataset, by, group_U[both_U][:_EXAMPLES]))


def _examples(dataset: Dataset, by: str, hashes: NDArray[np.uint64]) -> tuple[str, ...]:
    """Return the values of some hashes."""
    found_values: dict[str, None] = {}
    for values, _ in _values(dataset, by) if len(hashes) else ():
        distinct = values.drop_null().unique()
        hash_U = hash_values(0, pa.chunked_array([distinct]))
        found_values |= dict.fromkeys(distinct.filter(pa.array(np.isin(hash_U, hashes))).to_pylist())
        if len(found_values) == len(hashes):
            break
    return tuple(sorted(found_values))


def _values(dataset: Dataset, by: str) -> Iterator[tuple[pa.ChunkedArray, slice]]:
    """Yield the values of a field by parts of the index, as text, and the rows of each."""
    name, first = field_name(by), 0
    for table in dataset.table_parts("index", name.columns):
        yield group_values(name, table), slice(first, first + len(table))
        first += len(table)


def _say_leak(leak: Leak) -> str:
    if leak.by == COPIES:
        if not leak.both:
            return "no media is on both sides"
        return f"{leak.val_samples:,} samples of val are copies of samples in train, byte for byte"
    if not leak.groups:
        return f"no sample has {leak.by}, so its groups are not known"
    if not leak.both:
        return f"none of {leak.groups:,} groups by {leak.by} is on both sides"
    return (
        f"{leak.both:,} of {leak.groups:,} groups by {leak.by} are on both sides, with {leak.val_samples:,} samples of"
        " val"
    )
