"""An ST-DiT over ranks by ScaleFusion's schedule."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from loader.errors import UsageError
from train.measure.flops import TIME_WIDTH
from train.models.attention.patches import join
from train.models.attention.positions import Window, time_features
from train.models.attention.spatial_temporal import SpatialTemporalAttention
from train.models.denoiser import Denoiser
from train.models.dit import Attention, Branches, Rotation, through, tokens
from train.models.st_dit import STBlock, STDiT
from train.parallel.context.exchange import gather
from train.sampling.predictor import Conditions
from train.sampling.scalefusion.exchanges import AsyncExchanges, Exchanges, Finish
from train.sampling.scalefusion.jagged import Division
from train.sampling.scalefusion.schedule import (
    DEFAULT,
    KINDS,
    Compute,
    Launch,
    LayerKind,
    Slicing,
    Wait,
    schedule,
)

VECTORS = {"spatial": slice(0, 3), "temporal": slice(3, 12)}
"""Modulation vectors of each layer of a block: shift, scale and gate of each of its branches."""


class ScaleFusion:
    """`ModelRunner` of an ST-DiT whose ranks exchange some slices while they compute others.

    A block is two layers: spatial attention; then temporal attention, cross-attention and MLP. All but attention
    is per token, so that a slice passes through a whole layer alone. Tokens travel with their residual stream.

    Args:
        dit: model, replicated on all ranks.
        group: the ranks.
        slicing: numbers of slices; `DSP` for whole layers and blocking exchanges.
        exchanges: all-to-alls of the group; None: `AsyncExchanges`.

    Raises:
        UsageError: the model is no ST-DiT, attends over all tokens, or has sharded weights; or the numbers make
            no schedule.
    """

    def __init__(
        self,
        dit: Denoiser,
        group: dist.ProcessGroup,
        slicing: Slicing = DEFAULT,
        exchanges: Exchanges | None = None,
    ) -> None:
        self.dit, self.slicing = sliceable(dit), slicing.check()
        device = next(self.dit.parameters()).device
        self.exchanges = exchanges or AsyncExchanges(group, device)
        self.group = group

    @torch.no_grad()
    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        if window is not None:
            raise UsageError("ScaleFusion runs whole videos, no windows of them")
        dit = self.dit
        grid = dit.grid(x_BCTHW.shape[2:])
        division = Division.of(grid[0], grid[1] * grid[2], self.slicing, dist.get_world_size(self.group))
        inputs = _Inputs(
            dit.embed_time(time_features(timestep_input_B, TIME_WIDTH)),
            dit.embed_text(conditions.context_BMD),
            conditions.mask_BM,
        )
        values_BTSV = torch.unflatten(tokens(x_BCTHW, dit.patch), 1, (division.frames.cells.tokens, -1))
        layers = _Layers(dit, division, inputs, grid, dist.get_rank(self.group), x_BCTHW.device)
        outputs = self._run(layers, layers.embed(values_BTSV))
        values_BTSV = torch.cat([layers.leave(x_BWCD) for x_BWCD in outputs], dim=2)
        places, ranks = division.places, range(division.ranks)
        values_BTSV = gather(values_BTSV, [places.total(rank) for rank in ranks], self.group, dim=2)
        cells = [places.part(number, rank) for rank in ranks for number in range(self.slicing.spatial)]
        order = torch.cat([torch.arange(cell.start, cell.stop) for cell in cells])
        values_BTSV = values_BTSV.index_select(2, order.argsort().to(values_BTSV.device))
        return join(values_BTSV.reshape(len(x_BCTHW), *grid, dit.channels, -1), dit.patch)

    def _run(self, layers: "_Layers", parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Follow the schedule from the parts of the input to those of the last layer."""
        packed = {
            (0, number, part): rows
            for part, x_BWCD in enumerate(parts)
            for number, rows in enumerate(layers.pack(0, x_BWCD))
        }
        arriving: dict[tuple[int, int], tuple[torch.Tensor, list[Finish]]] = {}
        outputs: list[torch.Tensor] = []
        for operation in schedule(self.slicing, len(layers.blocks)):
            layer, number = operation.layer, operation.slice
            if isinstance(operation, Launch):
                rows = packed.pop((layer, number, operation.part))
                if (layer, number) not in arriving:
                    arriving[layer, number] = (layers.receiver(layer, number, rows), [])
                received_WCBD, finishes = arriving[layer, number]
                finishes.append(self._start(layers, operation, rows, received_WCBD))
            elif isinstance(operation, Wait):
                for finish in arriving[layer, number][1]:
                    finish()
            else:
                y_BWCD = layers.compute(operation, arriving.pop((layer, number))[0])
                if layer + 1 == 2 * len(layers.blocks):
                    outputs.append(y_BWCD)
                else:
                    for other, rows in enumerate(layers.pack(layer + 1, y_BWCD)):
                        packed[layer + 1, other, number] = rows
        return outputs

    def _start(
        self, layers: "_Layers", launch: Launch, rows: torch.Tensor, received_WCBD: torch.Tensor
    ) -> Finish:
        kind, rank = _kind(launch.layer), layers.rank
        goals = layers.division.cut(kind).counts(launch.slice)
        sources = layers.division.whole(kind)
        return self.exchanges.start(
            rows,
            received_WCBD[sources.slices.part(launch.part)].flatten(0, 1),
            [count * sources.counts(launch.part)[rank] for count in goals],
            [count * goals[rank] for count in sources.counts(launch.part)],
        )


class _Inputs(NamedTuple):
    """Embedded conditions of one pass."""

    condition_BD: torch.Tensor
    context_BMD: torch.Tensor
    mask_BM: torch.Tensor


class _Layers:
    """Layers of an ST-DiT on the slices of one rank; a slice is [B, W, C, D].

    W is the axis that attention needs whole, C the local part of the other one: places and frames in a spatial
    layer, frames and places in a temporal one.
    """

    def __init__(
        self,
        dit: STDiT,
        division: Division,
        inputs: _Inputs,
        grid: tuple[int, int, int],
        rank: int,
        device: torch.device,
    ) -> None:
        self.dit, self.division, self.inputs, self.rank = dit, division, inputs, rank
        self.blocks: Sequence[STBlock] = [block for block in dit.repeated() if isinstance(block, STBlock)]
        frames, places = division.frames, division.places
        cos_TSR, sin_TSR = (
            torch.unflatten(table_LR, 0, (frames.cells.tokens, -1))
            for table_LR in dit.rotation([grid], slice(None), device)
        )
        cells = [frames.part(number, rank) for number in range(len(frames.slices.lengths))]
        own = [places.part(number, rank) for number in range(len(places.slices.lengths))]
        self.rotations: dict[LayerKind, list[Rotation]] = {
            "spatial": [(_by_place(cos_TSR[cell]), _by_place(sin_TSR[cell])) for cell in cells],
            "temporal": [(cos_TSR[:, cell].flatten(0, 1), sin_TSR[:, cell].flatten(0, 1)) for cell in own],
        }
        self.vectors_BVD = torch.empty(0)

    def embed(self, values_BTSV: torch.Tensor) -> list[torch.Tensor]:
        """Embed the local places, by slices of a temporal layer."""
        places = self.division.places
        cells = [places.part(number, self.rank) for number in range(len(places.slices.lengths))]
        return [self.dit.embed(values_BTSV[:, :, cell]) for cell in cells]

    def pack(self, layer: int, x_BWCD: torch.Tensor) -> list[torch.Tensor]:
        """Return a slice's rows for each slice of the next layer, [C * W, B, D], for one rank after the other.

        They arrive where they stay: the receiver's whole axis outermost, sender after sender.
        """
        cut, ranks = self.division.cut(_kind(layer)), range(self.division.ranks)
        x_CWBD = x_BWCD.permute(2, 1, 0, 3)
        return [
            torch.cat([x_CWBD[:, cut.part(number, goal)].flatten(0, 1) for goal in ranks])
            for number in range(len(cut.slices.lengths))
        ]

    def receiver(self, layer: int, number: int, rows: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor for the rows of a slice, [W, C, B, D]."""
        cut, whole = self.division.cut(_kind(layer)), self.division.whole(_kind(layer))
        return rows.new_empty(whole.cells.tokens, cut.counts(number)[self.rank], *rows.shape[1:])

    def compute(self, operation: Compute, x_WCBD: torch.Tensor) -> torch.Tensor:
        """Compute a slice of a layer, [B, W, C, D]."""
        kind, block = _kind(operation.layer), self.blocks[operation.layer // 2]
        W, C, B, D = x_WCBD.shape
        if kind == "spatial" and operation.slice == 0:
            self.vectors_BVD = torch.unflatten(block.modulation(self.inputs.condition_BD), 1, (-1, D))
        vectors_BVD = self.vectors_BVD[:, VECTORS[kind]]
        branches = self._branches(kind, block, self.rotations[kind][operation.slice], (W, 1, C))
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
        seen = SpatialTemporalAttention([grid], "place")

        def own(attention: Attention, h_BLD: torch.Tensor) -> torch.Tensor:
            y_BLD: torch.Tensor = attention(h_BLD, h_BLD, rotation, blocks=seen)
            return y_BLD

        if kind == "spatial":
            return (lambda h_BLD: own(block.spatial, h_BLD),)
        inputs = self.inputs
        return (
            lambda h_BLD: own(block.temporal, h_BLD),
            lambda h_BLD: block.cross_attend(h_BLD, inputs.context_BMD, mask_BM=inputs.mask_BM),
            block.mlp,
        )


def sliceable(dit: Denoiser) -> STDiT:
    """Return a model if its layers may be computed in slices.

    Raises:
        UsageError: they may not.
    """
    if not isinstance(dit, STDiT):
        raise UsageError(
            f"ScaleFusion runs ST-DiTs only, whose layers attend within frames or through time; a {type(dit).__name__}"
            " attends to all tokens at once: use ring or ulysses ranks"
        )
    if dit.config.full_attention:
        raise UsageError(
            "ScaleFusion needs layers that fall into independent slices, and model.full_attention=true sees all tokens:"
            " use ring or ulysses ranks"
        )
    if isinstance(dit, FSDPModule):
        raise UsageError(
            "ScaleFusion needs the whole weights on each rank, and FSDP shards them: use ring or ulysses ranks"
        )
    return dit


def _by_place(x_TSR: torch.Tensor) -> torch.Tensor:
    """Return a table of tokens in the order of places, then time."""
    return x_TSR.transpose(0, 1).flatten(0, 1)


def _kind(layer: int) -> LayerKind:
    return KINDS[layer % 2]
