"""Sequence packing: packs of several samples of mixed shapes, without padding.

Attention is block-diagonal over the samples of a pack. So a pack costs the sum of its samples' costs, and needs memory
for the sum of their tokens. A step divides the next samples of the stream among ranks x m packs. In each slot all ranks
have packs of equal cost, hence equal sums: the same plan suits synchronization once per step and after every pack.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reelweave.loader.errors import UsageError
from reelweave.loader.plan.balance import RankCapacity, exchange_items

Floats = NDArray[np.float64]
IndexArray = NDArray[np.int64]

CARRIED = -1
_FILL = 0.85  # with fuller packs, tokens instead of costs decide the placement, and costs differ
_GROUPS = 4  # groups of packs; each round gives one group a sample per pack
_ALONE = 64  # number of last samples of a pack that are placed one by one
_GOOD_ENOUGH = 2e-3  # tolerated difference in units of a pack's cost, below the error of any cost model
_LOOKED_AT, _MOST_ROUNDS = 120_000, 10  # samples examined in all rounds of exchanges; rounds


@dataclass(frozen=True)
class PackSizes:
    """Number and size of a step's packs.

    Attributes:
        ranks: number of data-parallel ranks.
        packs: number of packs per rank.
        tokens: maximum tokens of a pack; a longer sample has a pack of its own.
    """

    ranks: int
    packs: int
    tokens: int

    @property
    def per_step(self) -> int:
        """Number of packs of a step, on all ranks."""
        return self.ranks * self.packs

    def sizes(self, lengths_N: IndexArray) -> IndexArray:
        """Return the tokens that each sample occupies in a pack: S, at most the pack's size."""
        return np.minimum(lengths_N, self.tokens)


def cu_seqlens(lengths: ArrayLike) -> NDArray[np.int32]:
    """Return the offsets of samples in a packed sequence: 0, S_1, S_1 + S_2, ..., end; int32 [n + 1].

    Raises:
        UsageError: a length is not positive, or the sum is beyond int32.
    """
    lengths_n = np.asarray(lengths, np.int64).reshape(-1)
    ends = np.concatenate([[0], np.cumsum(lengths_n)])
    if (lengths_n < 1).any() or ends[-1] > np.iinfo(np.int32).max:
        raise UsageError(f"{len(lengths_n)} samples of {ends[-1]} tokens make no packed sequence")
    return ends.astype(np.int32)


def num_taken(
    lengths_N: IndexArray, costs_N: Floats, step: PackSizes, cost_limit: float | None = None
) -> int:
    """Return the number of samples of the next step: those that fill 85 % of its tokens, at least one per pack.

    Args:
        lengths_N: int64 [N], S of the waiting samples, in stream order; N is at least ``step.per_step``.
        costs_N: float64 [N], cost of each sample.
        step: number and size of the packs.
        cost_limit: maximum mean cost of the samples of a pack; None for no limit.
    """
    count = np.searchsorted(
        np.cumsum(step.sizes(lengths_N)), _FILL * step.per_step * step.tokens, side="right"
    )
    if cost_limit is not None:
        reach = np.cumsum(costs_N)
        count = min(count, np.searchsorted(reach, step.per_step * cost_limit, side="right"))
    return max(int(count), step.per_step)


def balanced_packs(lengths_N: IndexArray, costs_N: Floats, step: PackSizes, carried: int = 0) -> IndexArray:
    """Return the pack of each sample, such that the packs of a slot have equal costs.

    The dearest samples seed one pack each, the dearest of all those of slot 0. The others are placed by falling length,
    each into the pack furthest below its target cost with enough free tokens. Finally, packs above and below their
    targets exchange samples.

    Samples that fit into no pack are carried over to the front of the next step, where each seeds a pack, so none waits
    twice. They are always fewer than the packs. Proof: when the shortest, of S tokens, found no room, each
    pack held more than ``tokens`` - S. So less than S per pack remains of the step's samples.

    Args:
        lengths_N: int64 [N], S of the step's samples; N is at least ``step.per_step``, their sum at most its tokens.
        costs_N: float64 [N], cost of each sample.
        step: number and size of the packs.
        carried: number of samples at the front that were carried over.

    Returns:
        int64 [N], slot * ranks + rank, or ``CARRIED``; equal for equal samples on every machine. No pack is empty.
    """
    sizes_N = step.sizes(lengths_N)
    new_N = np.arange(len(lengths_N)) >= carried
    order = np.lexsort((-costs_N, new_N))
    seeds, rest = order[: step.per_step], order[step.per_step :]
    seeds = seeds[np.argsort(-costs_N[seeds], kind="stable")]
    rest = rest[np.argsort(-sizes_N[rest], kind="stable")]
    targets_P = _targets(costs_N, step)
    pack_N = np.full(len(lengths_N), CARRIED)
    pack_N[seeds] = np.arange(step.per_step)
    _fill(pack_N, rest, sizes_N, costs_N, targets_P - costs_N[seeds], step.tokens - sizes_N[seeds])
    is_packed = pack_N != CARRIED
    room = RankCapacity(sizes_N[is_packed], step.tokens)
    rounds = min(max(1, _LOOKED_AT // len(lengths_N)), _MOST_ROUNDS)
    pack_N[is_packed] = exchange_items(
        costs_N[is_packed], pack_N[is_packed], targets_P, room, rounds, _GOOD_ENOUGH
    )
    return _even_ranks(pack_N, costs_N, step)


def packs_in_order(lengths_N: IndexArray, step: PackSizes) -> IndexArray:
    """Return the pack of each sample when packs are filled in stream order.

    Args:
        lengths_N: int64 [N], S of the waiting samples, in stream order.
        step: number and size of the packs.

    Returns:
        int64 [n], pack of the first n samples, which fill all packs; n = N if the samples do not fill them.
    """
    reach = np.cumsum(step.sizes(lengths_N))
    ends = [0]
    for _ in range(step.per_step):
        before = reach[ends[-1] - 1] if ends[-1] else 0
        ends.append(int(np.searchsorted(reach, before + step.tokens, side="right")))
    return np.repeat(np.arange(step.per_step), np.diff(ends))


def _targets(costs_N: Floats, step: PackSizes) -> Floats:
    """Return each pack's target cost, [packs of a step]: the mean, or the dearest sample's cost in slots above it."""
    dearest = np.sort(costs_N)[::-1]
    target_j = np.empty(step.packs)
    remaining = float(costs_N.sum())
    for slot in range(step.packs):
        mean = max(remaining, 0.0) / ((step.packs - slot) * step.ranks)
        if dearest[slot * step.ranks] <= mean:
            target_j[slot:] = mean
            break
        target_j[slot] = dearest[slot * step.ranks]
        remaining -= target_j[slot] * step.ranks
    return np.repeat(target_j, step.ranks)


def _fill(
    pack_N: IndexArray,
    order: IndexArray,
    sizes_N: IndexArray,
    costs_N: Floats,
    missing_P: Floats,
    room_P: IndexArray,
) -> None:
    """Place samples in rounds, in place: each round gives a sample to each of the packs furthest below target.

    While more than ``_ALONE`` samples per pack wait, a pack gets several of nearly equal length at once. So there are
    fewer than n + P rounds, in practice some hundreds; each takes O(P log P) time and constant memory.

    Args:
        pack_N: int64 [N], output: pack of each sample of ``order``, unchanged if no pack has room.
        order: int64 [n], samples by falling size.
        sizes_N: int64 [N], tokens of each sample.
        costs_N: float64 [N], cost of each sample.
        missing_P: float64 [P], cost missing to each pack's target; changed in place.
        room_P: int64 [P], free tokens of each pack; changed in place.
    """
    packs, at = len(room_P), 0
    group = max(1, packs // _GROUPS)
    while at < len(order):
        each = max(1, (len(order) - at) // (_ALONE * packs))
        size = sizes_N[order[at]]
        able = np.flatnonzero(room_P >= each * size)
        if not len(able) and each > 1:
            each, able = 1, np.flatnonzero(room_P >= size)
        if not len(able):
            at += 1
            continue
        chosen_p = able[np.argsort(-missing_P[able], kind="stable")[:group]]
        samples = order[at : at + each * len(chosen_p)]
        pack = np.resize(chosen_p, len(samples))
        pack_N[samples] = pack
        missing_P -= np.bincount(pack, costs_N[samples], packs)
        room_P -= np.bincount(pack, sizes_N[samples], packs).astype(np.int64)
        at += len(samples)


def _even_ranks(pack_N: IndexArray, costs_N: Floats, step: PackSizes) -> IndexArray:
    """Permute the packs within their slots to equalize the ranks' sums: the dearest pack to the least loaded rank."""
    is_packed = pack_N != CARRIED
    loads_jR = np.bincount(pack_N[is_packed], costs_N[is_packed], minlength=step.per_step).reshape(
        -1, step.ranks
    )
    sums_R = np.zeros(step.ranks)
    renamed = np.empty((step.packs, step.ranks), np.int64)
    for slot, loads_R in enumerate(loads_jR):
        dearest, cheapest = np.argsort(-loads_R, kind="stable"), np.argsort(sums_R, kind="stable")
        renamed[slot, dearest] = slot * step.ranks + cheapest
        sums_R[cheapest] += loads_R[dearest]
    return np.where(is_packed, renamed.reshape(-1)[pack_N], CARRIED)
