"""Sharding of videos by whole slices, frames or places, and the exchange between both.

The hybrid of Patel et al. 2025, section 4.6. Tokens are sharded by place: temporal attention is local, and
attention over all tokens works in any order. For spatial attention tokens move to ranks with whole frames and
back, by two all-to-alls per layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.dit import MultiHeadAttention, Rotation
from reelweave.train.models.transfer import send
from reelweave.train.parallel.context.exchange import exchange_rows

Grid = tuple[int, int, int]
"""Tokens along time, rows and columns."""


@dataclass(frozen=True, eq=False)
class SliceSharding:
    """Assignment of a batch's or pack's tokens to ranks by slices; a rank's tokens keep their order.

    Slices, sample after sample, are assigned in turn. A rank gets those whose middle lies in its even part of
    the sequence. With equal slices their numbers differ by at most one; a rank may have none.

    Attributes:
        owner: rank of each token, int64 [L], on the CPU.
        grids: token grid of each sample on each rank, [ranks][samples]; 0 along an axis without tokens.
    """

    owner: torch.Tensor
    grids: Sequence[Sequence[Grid]]

    @classmethod
    def of(cls, grids: Sequence[Grid], axis: Literal["frame", "place"], ranks: int) -> "SliceSharding":
        """Assign slices along an axis, as in spatial-temporal attention.

        Args:
            grids: token grid of each sample of a pack; a single entry for equal samples.
            axis: common property of a slice's tokens.
            ranks: number of ranks.
        """
        total = sum(math.prod(grid) for grid in grids)
        before, owners, rank_grids = 0, [], []
        for T, rows, columns in grids:
            positions = rows * columns
            count, length = (T, positions) if axis == "frame" else (positions, T)
            twice_middle = 2 * (before + length * torch.arange(count)) + length
            owner = twice_middle * ranks // (2 * total)
            owners.append(owner.repeat_interleave(length) if axis == "frame" else owner.repeat(length))
            counts = torch.bincount(owner, minlength=ranks).tolist()
            rank_grids.append([(n, rows, columns) if axis == "frame" else (T, 1, n) for n in counts])
            before += T * positions
        return cls(torch.cat(owners), list(zip(*rank_grids, strict=True)))

    def tokens(self, rank: int) -> torch.Tensor:
        """Return the indices of a rank's tokens, int64."""
        return (self.owner == rank).nonzero()[:, 0]


class SliceMoves(NamedTuple):
    """One rank's part of an exchange between two assignments, on the CPU; fields as in `SliceExchange`."""

    send: list[int]
    receive: list[int]
    leaving: torch.Tensor
    arriving: torch.Tensor

    @classmethod
    def between(cls, source: SliceSharding, target: SliceSharding, rank: int) -> "SliceMoves":
        """Return how a rank's tokens move."""
        ranks = len(source.grids)
        goals, sources = target.owner[source.tokens(rank)], source.owner[target.tokens(rank)]
        return cls(
            torch.bincount(goals, minlength=ranks).tolist(),
            torch.bincount(sources, minlength=ranks).tolist(),
            goals.argsort(stable=True),
            sources.argsort(stable=True).argsort(),
        )


class SliceOrders(NamedTuple):
    """Tokens of a batch or pack by place and by frame, as one rank has them, on the CPU.

    Attributes:
        by_place: assignment by place.
        by_frame: assignment by frame.
        order: position of each token in the order of ranks' places, int64 [L].
        go: moves from places to frames.
        back: moves from frames to places.
    """

    by_place: SliceSharding
    by_frame: SliceSharding
    order: torch.Tensor
    go: SliceMoves
    back: SliceMoves


@lru_cache(maxsize=16)
def slice_orders(grids: tuple[Grid, ...], ranks: int, rank: int) -> SliceOrders:
    """Return the orders of token grids; kept for the buckets that a run alternates between.

    The sorts take 10 ms for 118,800 tokens, in which the device would get no work.

    Args:
        grids: token grid of each sample of a pack; a single entry for equal samples.
        ranks: number of ranks.
        rank: this rank.
    """
    by_place, by_frame = (SliceSharding.of(grids, axis, ranks) for axis in ("place", "frame"))
    return SliceOrders(
        by_place,
        by_frame,
        by_place.owner.argsort(stable=True).argsort(),
        SliceMoves.between(by_place, by_frame, rank),
        SliceMoves.between(by_frame, by_place, rank),
    )


@dataclass(frozen=True, eq=False)
class SliceExchange:
    """Token exchange between two assignments.

    Attributes:
        group: the ranks.
        send: number of tokens for each rank.
        receive: number of tokens from each rank.
        leaving: local positions of the tokens in sending order, int64 [L].
        arriving: position in receiving order of each token wanted here, int64 [M].
    """

    group: dist.ProcessGroup
    send: list[int]
    receive: list[int]
    leaving: torch.Tensor
    arriving: torch.Tensor

    @classmethod
    def of(cls, moves: "SliceMoves", group: dist.ProcessGroup, device: torch.device) -> "SliceExchange":
        """Return the exchange of moves among the ranks of a group, with its orders on a device."""
        return cls(group, moves.send, moves.receive, *send([moves.leaving, moves.arriving], device))

    def __call__(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """Return the tokens that are wanted here, [B, M, D]."""
        rows_LBD = x_BLD.transpose(0, 1).index_select(0, self.leaving)
        rows_MBD = exchange_rows(rows_LBD, self.send, self.receive, self.group)
        return rows_MBD.index_select(0, self.arriving).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class WithinFrames:
    """Spatial attention of tokens that are sharded by place.

    Attributes:
        go: exchange to ranks with whole frames.
        back: inverse exchange.
        frames: attention pattern within frames.
        tokens: index of the tokens there.
        rotation: their rotary angles.
    """

    go: SliceExchange
    back: SliceExchange
    frames: SpatialTemporalAttention
    tokens: torch.Tensor
    rotation: Rotation

    def __call__(self, attention: MultiHeadAttention, x_BLD: torch.Tensor) -> torch.Tensor:
        """Apply an attention layer, [B, L, D], and return its outputs for the same tokens."""
        h_BMD = self.go(x_BLD)
        return self.back(attention(h_BMD, h_BMD, self.rotation, blocks=self.frames))
