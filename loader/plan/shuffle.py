"""Random access shuffling: a Feistel permutation of samples, or of runs of samples.

A network permutes pairs (l, r) of coordinates l < a and r < b, with a b >= n. Each round adds a keyed hash of one
coordinate to the other, which permutes the a b pairs for any hash. Pairs beyond n pass through the network again until
they fall below it (cycle walking; Black and Rogaway, 2002).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from reelweave.loader.base.arrays import IndexArray, IntegerArray, number_type
from reelweave.loader.base.columns import parts
from reelweave.loader.base.philox import words
from reelweave.loader.settings import Settings

_ROUNDS = 16  # with 8, groups of five or six samples do not see all orders equally often
_KEYS = _ROUNDS + 2  # per group: round keys, place of the short run, offset of the first run

Words = NDArray[np.uint64]


class Shuffle(Settings):
    """Shuffle of an epoch's samples within their buckets."""

    order: Literal["sorted", "permuted"] = Field(
        default="sorted",
        description="sorted: sort random words anew in every epoch; permuted: a Feistel permutation, computed on"
        " access, without time or memory at the start of an epoch",
    )
    run: PositiveInt = Field(
        default=1,
        le=4096,
        description="samples of a bucket that stay adjacent in their shard and in the order, so that one request"
        " reads them. 1 shuffles single samples; above 1 needs order: permuted",
    )

    @model_validator(mode="after")
    def _runs_are_permuted(self) -> Self:
        if self.run > 1 and self.order == "sorted":
            raise ValueError(f"run: {self.run} needs order: permuted")
        return self


SORTED = Shuffle()


class Grouped(NamedTuple):
    """Draws of an epoch, sorted by group; the same in every epoch.

    Attributes:
        numbers: uint32 or int64 [N], draws by group; within a group by place in the shards where `near_D` is given.
        starts: int64 [G + 1], offset of each group in `numbers`, and the end.
    """

    numbers: IntegerArray
    starts: IndexArray


def sort_by_group(group_D: IntegerArray, groups: int, near_D: IntegerArray | None = None) -> Grouped:
    """Sort the draws by group, without group 0.

    Args:
        group_D: integers [D], group of each draw; 0 marks draws to leave out.
        groups: number of groups; some may be empty.
        near_D: place of each draw in the order of the shards; None keeps the order of the draws.
    """
    order = np.argsort(group_D, kind="stable") if near_D is None else np.lexsort((near_D, group_D))
    count_G = np.zeros(groups + 1, np.int64)
    for part in parts(len(group_D)):
        count_G += np.bincount(group_D[part], minlength=len(count_G))
    return Grouped(order[count_G[0] :].astype(number_type(len(group_D))), np.cumsum(count_G) - count_G[0])


@dataclass(frozen=True, eq=False)
class Permuted:
    """Lazy random permutation within groups, indexed like an array [N].

    Attributes:
        seed: Philox seed, see `reelweave.loader.base.philox.words`.
        number: Philox counter, see `reelweave.loader.base.philox.words`.
        purpose: Philox stream, see `reelweave.loader.base.philox.words`.
        starts: int64 [G + 1], offset of each group, and the end.
        members: values to permute, by group; None permutes the places themselves.
        run: length of the runs of members that stay adjacent.
        fillers: places appended at the end, which repeat the ``last`` places before them.
        last: number of places that fillers repeat.
    """

    seed: int
    number: int
    purpose: int
    starts: IndexArray
    members: IntegerArray | None = None
    run: int = 1
    fillers: int = 0
    last: int = 1

    def __len__(self) -> int:
        return int(self.starts[-1]) + self.fillers

    def __getitem__(self, indices: "slice | IntegerArray") -> IntegerArray:
        """Return the values at some places."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        held = int(self.starts[-1])
        place_n = np.asarray(indices, np.int64)
        place_n = np.where(place_n < held, place_n, held - self.last + (place_n - held) % self.last)
        group_n = np.searchsorted(self.starts, place_n, side="right") - 1
        begin_n = self.starts[group_n]
        found_n = begin_n + self._within(place_n - begin_n, group_n)
        return found_n if self.members is None else self.members[found_n]

    def _within(self, place_n: IndexArray, group_n: IndexArray) -> IndexArray:
        """Map places to members, both counted within their groups."""
        keys_GK, size_G = self._keys, np.diff(self.starts)
        full_G, short_G = np.divmod(size_G, self.run)  # whole runs, and samples of the shorter last run
        if self.run == 1:
            return permute_indices(place_n, size_G[group_n], keys_GK[group_n, :_ROUNDS])
        size_n, full_n, short_n = size_G[group_n], full_G[group_n], short_G[group_n]
        where_n = _below(keys_GK[group_n, -2], full_n + 1) * self.run
        in_short = (place_n >= where_n) & (place_n < where_n + short_n)
        before_n = np.where(in_short, 0, place_n - np.where(place_n >= where_n, short_n, 0))
        unit_n, inner_n = np.divmod(before_n, self.run)
        unit_n = permute_indices(unit_n, np.maximum(full_n, 1), keys_GK[group_n, :_ROUNDS])
        member_n = np.where(in_short, full_n * self.run + place_n - where_n, unit_n * self.run + inner_n)
        # The offset differs by epoch, so that runs begin at other samples.
        return np.asarray((member_n + _below(keys_GK[group_n, -1], size_n)) % size_n)

    @cached_property
    def _keys(self) -> Words:
        groups = len(self.starts) - 1
        return words(self.seed, self.number, self.purpose, groups * _KEYS).reshape(groups, _KEYS)


def permute_indices(place_n: IndexArray, size_n: IndexArray, keys_nR: Words) -> IndexArray:
    """Map each place by a random permutation of 0 to size - 1.

    Args:
        place_n: int64 [n], each below its size.
        size_n: int64 [n], size of each place's permutation.
        keys_nR: uint64 [n, R], round keys, equal for places of one permutation.
    """
    high_n = np.ceil(np.sqrt(size_n)).astype(np.uint64)
    low_n = -(-size_n // high_n.astype(np.int64)).astype(np.uint64)
    found_n = place_n.astype(np.uint64)
    walking = np.arange(len(found_n))
    while len(walking):
        high, low = high_n[walking], low_n[walking]
        high_bits, right = np.divmod(found_n[walking], low)
        for round_index in range(keys_nR.shape[1]):
            key = keys_nR[walking, round_index]
            if round_index % 2:
                right = (right + _mix_words(high_bits ^ key) % low) % low
            else:
                high_bits = (high_bits + _mix_words(right ^ key) % high) % high
        found_n[walking] = high_bits * low + right
        walking = walking[found_n[walking] >= size_n[walking].astype(np.uint64)]
    return found_n.astype(np.int64)


def _mix_words(word_n: Words) -> Words:
    """Hash each word: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    word_n = word_n + np.uint64(0x9E3779B97F4A7C15)
    word_n = (word_n ^ (word_n >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word_n = (word_n ^ (word_n >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word_n ^ (word_n >> np.uint64(31))


def _below(word_n: Words, count_n: IndexArray) -> NDArray[Any]:
    return np.asarray((word_n >> np.uint64(1)).astype(np.int64) % count_n)
