"""Videos that lie on ranks by whole slices: all frames of some places, or some whole frames; and the way between.

The hybrid of Patel et al. 2025, section 4.6: tokens rest by places, where attention through time needs no others and
attention over all tokens takes them in any order. For attention within frames they go to ranks that have whole frames,
and what it yields comes back: two all-to-alls a layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from train.models.attention.apart import Apart
from train.models.dit import Attention, Rotation
from train.parallel.context.exchange import exchange_rows

Grid = tuple[int, int, int]
"""Tokens along time, rows and columns."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Which rank has which tokens of a batch or a pack; a rank's tokens keep their order.

    Slices, sample after sample, lie on the ranks in turn. A rank has those whose middle lies in its even part of the
    sequence: in number they differ by one at most where all are alike, and a rank may have none.

    Attributes:
        owner: the rank of each token, int64 [L], on the CPU.
        grids: the tokens of each sample on each rank, [ranks][samples]; 0 along an axis where it has none.
    """

    owner: torch.Tensor
    grids: Sequence[Sequence[Grid]]

    @classmethod
    def of(cls, grids: Sequence[Grid], axis: Literal["frame", "place"], ranks: int) -> "Slices":
        """Slices along an axis, as of `train.models.attention.apart.Apart`.

        Args:
            grids: of each sample of a pack; of all samples, where there is one.
            axis: what the tokens of a slice share.
            ranks: over how many ranks they are cut.
        """
        total = sum(math.prod(grid) for grid in grids)
        before, owners, found = 0, [], []
        for T, rows, columns in grids:
            places = rows * columns
            count, length = (T, places) if axis == "frame" else (places, T)
            twice_middle = 2 * (before + length * torch.arange(count)) + length
            owner = twice_middle * ranks // (2 * total)
            owners.append(owner.repeat_interleave(length) if axis == "frame" else owner.repeat(length))
            here = torch.bincount(owner, minlength=ranks).tolist()
            found.append([(n, rows, columns) if axis == "frame" else (T, 1, n) for n in here])
            before += T * places
        return cls(torch.cat(owners), list(zip(*found, strict=True)))

    def tokens(self, rank: int) -> torch.Tensor:
        """Which tokens a rank has, int64."""
        return (self.owner == rank).nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class Way:
    """From where tokens lie to where they are wanted: one all-to-all, and one in backward.

    Attributes:
        group: the ranks.
        send: how many tokens go to each rank.
        receive: how many come from each.
        leaving: where the tokens lie here in the order in which they go, int64 [L].
        arriving: where in that order each token is that is wanted here, int64 [M].
    """

    group: dist.ProcessGroup
    send: list[int]
    receive: list[int]
    leaving: torch.Tensor
    arriving: torch.Tensor

    @classmethod
    def between(
        cls, here: Slices, there: Slices, rank: int, group: dist.ProcessGroup, device: torch.device
    ) -> "Way":
        """For the tokens of one rank."""
        ranks = dist.get_world_size(group)
        goals, sources = there.owner[here.tokens(rank)], here.owner[there.tokens(rank)]
        return cls(
            group,
            torch.bincount(goals, minlength=ranks).tolist(),
            torch.bincount(sources, minlength=ranks).tolist(),
            goals.argsort(stable=True).to(device),
            sources.argsort(stable=True).argsort().to(device),
        )

    def __call__(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """The tokens that are wanted here, [B, M, D]."""
        rows_LBD = x_BLD.transpose(0, 1).index_select(0, self.leaving)
        rows_MBD = exchange_rows(rows_LBD, self.send, self.receive, self.group)
        return rows_MBD.index_select(0, self.arriving).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class WithinFrames:
    """Attention within frames of tokens that lie elsewhere.

    Attributes:
        go: to the ranks that have whole frames.
        back: and back again.
        frames: who sees whom there.
        rotation: of the tokens there.
    """

    go: Way
    back: Way
    frames: Apart
    rotation: Rotation

    def __call__(self, attention: Attention, x_BLD: torch.Tensor) -> torch.Tensor:
        """What the layer makes of tokens, [B, L, D], for the same tokens."""
        h_BMD = self.go(x_BLD)
        return self.back(attention(h_BMD, h_BMD, self.rotation, blocks=self.frames))
