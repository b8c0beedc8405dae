"""Simulation of a schedule on two streams per rank, computation and communication, from measured costs.

A stream runs its operations in program order. An exchange starts once every rank has computed what precedes its
launch and the exchange before has ended; it ends on all ranks together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.schedule import (
    DSP,
    KINDS,
    LayerKind,
    PieceLaunch,
    Slicing,
    Wait,
    schedule,
)


@dataclass(frozen=True)
class LayerCosts:
    """Seconds of a model's layers and exchanges for videos of one size.

    Attributes:
        token_s: seconds per token of a layer of each kind, attention included.
        slice_s: further seconds per slice: launches of kernels, and work too small for the device.
        byte_s: seconds per byte that each rank sends to others, where all send alike.
        exchange_s: further seconds per exchange.
        token_bytes: size of a token between layers, of all samples.
        sharing: number of adjacent ranks that share a link, such as those of a node.
    """

    token_s: Mapping[LayerKind, float]
    slice_s: float
    byte_s: float
    exchange_s: float
    token_bytes: int
    sharing: int = 1


class PassTime(NamedTuple):
    """Simulated times of one model pass.

    Attributes:
        seconds: time until the last rank ends.
        computing: seconds of computation, the most of a rank.
        exposed: seconds beyond these, in which that rank waits.
        exchanging: seconds in which an exchange is under way.
    """

    seconds: float
    computing: float
    exposed: float
    exchanging: float


def simulate(slicing: Slicing, division: TokenDivision, pairs: int, costs: LayerCosts) -> PassTime:
    """Simulate one model pass over all ranks.

    Args:
        slicing: the four numbers.
        division: slices and ranks.
        pairs: number of pairs of a spatial and a temporal layer.
        costs: seconds and bytes.
    """
    sizes = {kind: _Sizes.of(division, kind, costs.sharing) for kind in KINDS}
    computed, busy = np.zeros(division.ranks), np.zeros(division.ranks)
    sent = exchanging = 0.0
    arrived: dict[tuple[int, int], float] = {}
    for operation in schedule(slicing, pairs):
        kind, at = KINDS[operation.layer % 2], (operation.layer, operation.slice)
        if isinstance(operation, PieceLaunch):
            # Exchanges follow one another on the network, each behind what it sends.
            if division.ranks > 1:
                tokens = float(sizes[kind].sent[operation.slice, operation.part])
                took = costs.exchange_s + costs.byte_s * costs.token_bytes * tokens
                sent = max(sent, float(computed.max())) + took
                exchanging += took
            arrived[at] = sent
        elif isinstance(operation, Wait):
            computed = np.maximum(computed, arrived[at])
        else:
            # Ranks compute their share of a slice side by side.
            own_P = sizes[kind].local[operation.slice]
            took_P = np.where(own_P > 0, costs.slice_s + costs.token_s[kind] * own_P, 0.0)
            computed, busy = computed + took_P, busy + took_P
    seconds, computing = float(computed.max()), float(busy.max())
    return PassTime(seconds, computing, seconds - computing, exchanging)


def choose(
    frames: int, positions: int, ranks: int, pairs: int, costs: LayerCosts, most_slices: int = 6
) -> tuple[Slicing, PassTime]:
    """Return the four numbers with the shortest simulated pass, and the pass; the same on ranks with equal costs.

    A candidate's time is extrapolated from two and three pairs of layers, since pairs repeat; the fewest slices win
    among equals.

    Args:
        frames: tokens along time.
        positions: tokens of a frame.
        ranks: number of ranks.
        pairs: number of pairs of a spatial and a temporal layer.
        costs: seconds and bytes.
        most_slices: most slices along either axis.
    """
    best, shortest = DSP, float("inf")
    for N_T, N_S in product(
        range(1, min(most_slices, frames) + 1), range(1, min(most_slices, positions) + 1)
    ):
        division = TokenDivision.of(frames, positions, Slicing(N_T, N_S, 0, 0), ranks)
        for lifted in product(range(N_T + 1), range(N_S + 1)):
            slicing = Slicing(N_T, N_S, *lifted)
            two, three = (simulate(slicing, division, count, costs).seconds for count in (2, 3))
            seconds = three + (pairs - 3) * (three - two)
            if seconds < shortest * (1 - 1e-9):
                best, shortest = slicing, seconds
    return best, simulate(best, TokenDivision.of(frames, positions, best, ranks), pairs, costs)


def buffer_bytes(slicing: Slicing, division: TokenDivision, token_bytes: int) -> int:
    """Return the most bytes of tokens that a rank holds at a time, less its own tokens once.

    Counted in program order, as a GPU's allocator reuses memory on a stream, and as the executor keeps
    tensors. A packed piece is kept from its computation until it is waited for. A slice's input is kept from
    its first launch until it is computed, its output while it is packed. What a layer allocates inside does
    not count.

    Args:
        slicing: the four numbers.
        division: slices and ranks.
        token_bytes: size of a token between layers, of all samples.
    """
    max_tokens = max(_most_tokens(slicing, division, rank) for rank in range(division.ranks))
    return max_tokens * token_bytes


def blocking_buffer_bytes(division: TokenDivision, token_bytes: int) -> int:
    """Return the same for DSP as `reelweave.train.parallel.context.slices` runs it, and VideoSys.

    An exchange holds three copies beside the tokens: packed for all ranks, received, and put in order.
    """
    totals = [
        max(division.cut(kind).cells.tokens * division.whole(kind).total(rank) for kind in KINDS)
        for rank in range(division.ranks)
    ]
    return 3 * max(totals) * token_bytes


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Tokens of one kind of layer.

    Attributes:
        local: tokens of a slice on each rank, [slices, P].
        sent: tokens of a piece that a rank sends or receives, the mean over the ranks of the busiest link,
            [slices, parts].
    """

    local: np.ndarray
    sent: np.ndarray

    @classmethod
    def of(cls, division: TokenDivision, kind: LayerKind, sharing: int) -> "_Sizes":
        cut, full = division.cut(kind), division.whole(kind)
        cut_NP = np.array(cut.cells.lengths).reshape(-1, division.ranks)
        whole_NP = np.array(full.cells.lengths).reshape(-1, division.ranks)
        sent_NMP = (cut_NP.sum(axis=1, keepdims=True) - cut_NP)[:, None] * whole_NP[None]
        received_NMP = cut_NP[:, None] * (whole_NP.sum(axis=1, keepdims=True) - whole_NP)[None]
        links = np.arange(0, division.ranks, sharing)
        ranks = np.diff([*links, division.ranks])
        busiest = [np.add.reduceat(x, links, axis=2) / ranks for x in (sent_NMP, received_NMP)]
        return cls(cut_NP * full.cells.tokens, np.maximum(*busiest).max(axis=2))


def _most_tokens(slicing: Slicing, division: TokenDivision, rank: int) -> int:
    """Return the most tokens beyond its own that a rank holds; two pairs of layers show all states."""
    pairs = 2

    def tokens(kind: LayerKind, index: int) -> int:
        return division.whole(kind).cells.tokens * division.cut(kind).counts(index)[rank]

    def packed_bytes(layer: int, index: int, part: int) -> int:
        kind = KINDS[layer % 2]
        return division.cut(kind).slices.lengths[index] * division.whole(kind).counts(part)[rank]

    parts = range(slicing.count(-1))
    live: dict[object, int] = {
        (0, index, part): packed_bytes(0, index, part) for index in range(slicing.count(0)) for part in parts
    }
    initial = max_tokens = sum(live.values())
    for operation in schedule(slicing, pairs):
        layer, index = operation.layer, operation.slice
        kind = KINDS[layer % 2]
        if isinstance(operation, PieceLaunch):
            live[layer, index] = tokens(kind, index)
        elif isinstance(operation, Wait):
            for part in range(slicing.count(layer - 1)):
                del live[layer, index, part]
        else:
            # Input and output, then output and pieces.
            max_tokens = max(max_tokens, sum(live.values()) + tokens(kind, index))
            del live[layer, index]
            for other in range(slicing.count(layer + 1)):
                live[layer + 1, other, index] = packed_bytes(layer + 1, other, index)
            max_tokens = max(max_tokens, sum(live.values()) + tokens(kind, index))
        max_tokens = max(max_tokens, sum(live.values()))
    return max_tokens - initial
