"""Packs of samples: sequences of several samples, each with its own shape, so that nothing is padded.

Attention is block-diagonal over the samples of a pack, so a pack costs what its samples cost one by one, and needs
memory for the sum of their tokens. A step takes the next samples of the stream and divides them over ranks x m packs.
In each slot all ranks have packs of equal cost, hence equal sums too: one plan serves those who wait once a step and
those who wait after every pack.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader.errors import UsageError
from loader.plan.balance import RankCapacity, exchanged

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

CARRIED = -1
_FILL = 0.85  # with fuller packs the tokens decide what goes where, and costs differ
_GROUPS = 4  # of packs; in a round one group gets a sample each
_ALONE = 64  # the last so many samples of a pack are placed one by one
_GOOD_ENOUGH = 2e-3  # of a pack's cost; no cost model is as good
_LOOKED_AT, _MOST_ROUNDS = 120_000, 10  # samples in all rounds of exchanges together


@dataclass(frozen=True)
class PackSizes:
    """The packs of a step.

    Attributes:
        ranks: data-parallel.
        packs: of a rank.
        tokens: of a pack at most; a longer sample has a pack for itself.
    """

    ranks: int
    packs: int
    tokens: int

    @property
    def per_step(self) -> int:
        """Packs of a step, on all ranks."""
        return self.ranks * self.packs

    def sizes(self, lengths_N: Places) -> Places:
        """Tokens of a pack that each sample takes: S, or all of them."""
        return np.minimum(lengths_N, self.tokens)


def cu_seqlens(lengths: ArrayLike) -> NDArray[np.int32]:
    """Where each sample starts in a packed sequence, and the end: 0, S_1, S_1 + S_2, ...; int32 [n + 1].

    Raises:
        UsageError: a length is not positive, or the sum is beyond int32.
    """
    lengths_n = np.asarray(lengths, np.int64).reshape(-1)
    ends = np.concatenate([[0], np.cumsum(lengths_n)])
    if (lengths_n < 1).any() or ends[-1] > np.iinfo(np.int32).max:
        raise UsageError(f"{len(lengths_n)} samples of {ends[-1]} tokens make no packed sequence")
    return ends.astype(np.int32)


def taken(lengths_N: Places, costs_N: Floats, step: PackSizes, cost_limit: float | None = None) -> int:
    """How many samples of a stream a step takes: as many as fill 85 % of its tokens, but one for each pack.

    Args:
        lengths_N: int64 [N], S of the samples that wait, in stream order; N at least ``step.per_step``.
        costs_N: float64 [N], of each.
        step: its packs.
        cost_limit: of the samples of a pack at most, on average; None is no bound.
    """
    count = np.searchsorted(
        np.cumsum(step.sizes(lengths_N)), _FILL * step.per_step * step.tokens, side="right"
    )
    if cost_limit is not None:
        reach = np.cumsum(costs_N)
        count = min(count, np.searchsorted(reach, step.per_step * cost_limit, side="right"))
    return max(int(count), step.per_step)


def balanced_packs(lengths_N: Places, costs_N: Floats, step: PackSizes, carried: int = 0) -> Places:
    """The pack of each sample, such that the packs of a slot have equal costs.

    The dearest samples begin a pack each, the dearest of all those of slot 0. The others are placed by falling length,
    each where most is missing and its tokens fit; at the end, packs with too much and packs with too little exchange
    samples.

    A sample that fits into no pack is carried over to the front of the next step, where it begins a pack, so none waits
    twice. There are always fewer of them than packs: when the shortest, of S tokens, found no room, each pack held more
    than ``tokens`` - S, which leaves less than S per pack of what the step takes.

    Args:
        lengths_N: int64 [N], S of the samples of the step; N at least ``step.per_step``, together at most its tokens.
        costs_N: float64 [N], of each.
        step: its packs.
        carried: so many at the front come from the step before.

    Returns:
        int64 [N], slot * ranks + rank, or ``CARRIED``; the same for the same samples on every machine. No pack is
        empty.
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
    placed = pack_N != CARRIED
    room = RankCapacity(sizes_N[placed], step.tokens)
    rounds = min(max(1, _LOOKED_AT // len(lengths_N)), _MOST_ROUNDS)
    pack_N[placed] = exchanged(costs_N[placed], pack_N[placed], targets_P, room, rounds, _GOOD_ENOUGH)
    return _even_ranks(pack_N, costs_N, step)


def packs_in_order(lengths_N: Places, step: PackSizes) -> Places:
    """Packs filled one after the other with the samples as they come, until the next does not fit.

    Args:
        lengths_N: int64 [N], S of the samples that wait, in stream order.
        step: its packs.

    Returns:
        int64 [n], the pack of the first n samples, which fill all packs; n = N where they fill fewer.
    """
    reach = np.cumsum(step.sizes(lengths_N))
    ends = [0]
    for _ in range(step.per_step):
        before = reach[ends[-1] - 1] if ends[-1] else 0
        ends.append(int(np.searchsorted(reach, before + step.tokens, side="right")))
    return np.repeat(np.arange(step.per_step), np.diff(ends))


def _targets(costs_N: Floats, step: PackSizes) -> Floats:
    """What each pack should cost, [packs of a step]: the mean; in slots of dearer samples as much as the dearest."""
    dearest = np.sort(costs_N)[::-1]
    target_j = np.empty(step.packs)
    left = float(costs_N.sum())
    for slot in range(step.packs):
        mean = max(left, 0.0) / ((step.packs - slot) * step.ranks)
        if dearest[slot * step.ranks] <= mean:
            target_j[slot:] = mean
            break
        target_j[slot] = dearest[slot * step.ranks]
        left -= target_j[slot] * step.ranks
    return np.repeat(target_j, step.ranks)


def _fill(
    pack_N: Places, order: Places, sizes_N: Places, costs_N: Floats, missing_P: Floats, room_P: Places
) -> None:
    """Places samples round by round, in place: in each, the packs that miss most and have room get one sample each.

    As long as more than ``_ALONE`` samples for each pack wait, a pack gets several of nearly one length at a time. So
    there are fewer than n + P rounds, in practice some hundreds, and each takes O(P log P) and no memory that grows.

    Args:
        pack_N: int64 [N], gets the pack of each sample of ``order``, or is left as it is.
        order: int64 [n], samples by falling size.
        sizes_N: int64 [N].
        costs_N: float64 [N].
        missing_P: float64 [P], what each pack lacks; changed.
        room_P: int64 [P], tokens left in each; changed.
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


def _even_ranks(pack_N: Places, costs_N: Floats, step: PackSizes) -> Places:
    """The same packs, dealt within their slots so that the ranks' sums are near: the dearest to who has least."""
    placed = pack_N != CARRIED
    loads_jR = np.bincount(pack_N[placed], costs_N[placed], minlength=step.per_step).reshape(-1, step.ranks)
    sums_R = np.zeros(step.ranks)
    renamed = np.empty((step.packs, step.ranks), np.int64)
    for slot, loads_R in enumerate(loads_jR):
        dearest, least = np.argsort(-loads_R, kind="stable"), np.argsort(sums_R, kind="stable")
        renamed[slot, dearest] = slot * step.ranks + least
        sums_R[least] += loads_R[dearest]
    return np.where(placed, renamed.reshape(-1)[pack_N], CARRIED)
