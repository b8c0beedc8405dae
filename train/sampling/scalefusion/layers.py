"""Layers of an ST-DiT on slices of a video, for one rank."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.dit import Branches, MultiHeadAttention, Rotation, through
from reelweave.train.models.st_dit import STBlock, STDiT
from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.schedule import KINDS, LayerKind

VECTORS = {"spatial": slice(0, 3), "temporal": slice(3, 12)}
"""Modulation vectors of each layer of a block: shift, scale and gate of each of its branches."""


class EmbeddedInputs(NamedTuple):
    """Embedded conditions of one pass."""

    condition_BD: torch.Tensor
    context_BMD: torch.Tensor
    mask_BM: torch.Tensor


class SlicedLayers:
    """Layers of an ST-DiT on the slices of one rank; a slice is [B, W, C, D].

    W is the axis that attention needs whole, C the local part of the other one. They are places and frames in
    a spatial layer, frames and places in a temporal one.

    Args:
        dit: model.
        division: slices and ranks.
        inputs: conditions of the pass.
        rotation: rotary cosines and sines of all tokens of the video.
        places_LD: addition to their embeddings for their places; None: nothing.
        rank: index of this rank.
    """

    def __init__(
        self,
        dit: STDiT,
        division: TokenDivision,
        inputs: EmbeddedInputs,
        rotation: Rotation,
        places_LD: torch.Tensor | None,
        rank: int,
    ) -> None:
        self.dit, self.division, self.inputs, self.rank = dit, division, inputs, rank
        self.blocks = cast("Sequence[STBlock]", dit.repeated())
        frames, positions = division.frames, division.positions
        in_frames = (frames.cells.tokens, -1)
        self.places_TSD = None if places_LD is None else torch.unflatten(places_LD, 0, in_frames)
        cos_TSR, sin_TSR = (torch.unflatten(table_LR, 0, in_frames) for table_LR in rotation)
        cells = [frames.part(index, rank) for index in range(len(frames.slices.lengths))]
        position_slices = [positions.part(index, rank) for index in range(len(positions.slices.lengths))]
        self.rotations: dict[LayerKind, list[Rotation]] = {
            "spatial": [(_by_place(cos_TSR[cell]), _by_place(sin_TSR[cell])) for cell in cells],
            "temporal": [
                (cos_TSR[:, cell].flatten(0, 1), sin_TSR[:, cell].flatten(0, 1)) for cell in position_slices
            ],
        }
        self.vectors_BVD = torch.empty(0)

    def embed(self, values_BTSV: torch.Tensor) -> list[torch.Tensor]:
        """Embed the local places, by slices of a temporal layer."""
        positions = self.division.positions
        cells = [positions.part(index, self.rank) for index in range(len(positions.slices.lengths))]
        embedded = [self.dit.embed(values_BTSV[:, :, cell]) for cell in cells]
        if self.places_TSD is None:
            return embedded
        added = [self.places_TSD[:, cell] for cell in cells]
        return [x + positions.to(x.dtype) for x, positions in zip(embedded, added, strict=True)]

    def pack(self, layer: int, x_BWCD: torch.Tensor) -> list[torch.Tensor]:
        """Return a slice's rows for each slice of the next layer, [C * W, B, D], for one rank after the other.

        They arrive where they stay: the receiver's whole axis outermost, sender after sender.
        """
        cut, ranks = self.division.cut(layer_kind(layer)), range(self.division.ranks)
        x_CWBD = x_BWCD.permute(2, 1, 0, 3)
        return [
            torch.cat([x_CWBD[:, cut.part(index, goal)].flatten(0, 1) for goal in ranks])
            for index in range(len(cut.slices.lengths))
        ]

    def receiver(self, layer: int, index: int, rows: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor for the rows of a slice, [W, C, B, D]."""
        cut, full = self.division.cut(layer_kind(layer)), self.division.whole(layer_kind(layer))
        return rows.new_empty(full.cells.tokens, cut.counts(index)[self.rank], *rows.shape[1:])

    def compute(self, layer: int, index: int, x_WCBD: torch.Tensor) -> torch.Tensor:
        """Compute a slice of a layer, [B, W, C, D]; the first slice of a block comes before all others."""
        kind, block = layer_kind(layer), self.blocks[layer // 2]
        W, C, B, D = x_WCBD.shape
        if kind == "spatial" and index == 0:
            self.vectors_BVD = torch.unflatten(block.modulation(self.inputs.condition_BD), 1, (-1, D))
        vectors_BVD = self.vectors_BVD[:, VECTORS[kind]]
        branches = self._branches(kind, block, self.rotations[kind][index], (W, 1, C))
        y_BLD = through(x_WCBD.flatten(0, 1).transpose(0, 1), branches, vectors_BVD.flatten(1), None)
        return y_BLD.view(B, W, C, D)

    def leave(self, x_BWCD: torch.Tensor) -> torch.Tensor:
        """Return the predicted values of a slice of the last layer, [B, T, C, V]."""
        streams = (x_BWCD.flatten(1, 2), self.inputs.context_BMD)
        values_BLV = self.dit.leave(streams, self.inputs.condition_BD, None)
        return values_BLV.view(*x_BWCD.shape[:3], values_BLV.shape[-1])

    def _branches(
        self, kind: LayerKind, block: STBlock, rotation: Rotation, grid: tuple[int, int, int]
    ) -> Branches:
        # Tokens lie with the attended axis outermost, as time does in temporal attention.
        attend = SpatialTemporalAttention([grid], "place")

        def own(attention: MultiHeadAttention, h_BLD: torch.Tensor) -> torch.Tensor:
            y_BLD: torch.Tensor = attention(h_BLD, h_BLD, rotation, blocks=attend)
            return y_BLD

        if kind == "spatial":
            return (lambda h_BLD: own(block.spatial, h_BLD),)
        inputs = self.inputs
        return (
            lambda h_BLD: own(block.temporal, h_BLD),
            lambda h_BLD: block.cross_attend(h_BLD, inputs.context_BMD, mask_BM=inputs.mask_BM),
            block.mlp,
        )


def _by_place(x_TSR: torch.Tensor) -> torch.Tensor:
    """Return a table of tokens in the order of places, then time."""
    return x_TSR.transpose(0, 1).flatten(0, 1)


def layer_kind(layer: int) -> LayerKind:
    """Return the kind of a layer, counted from 0."""
    return KINDS[layer % 2]
