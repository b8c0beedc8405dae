"""An ST-DiT over ranks by ScaleFusion's schedule."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from reelweave.loader.errors import UsageError
from reelweave.train.measure.flops import TIME_WIDTH
from reelweave.train.models.attention.patches import join
from reelweave.train.models.attention.positions import Window, time_features
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import tokens
from reelweave.train.models.st_dit import STDiT
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.sampling.scalefusion.exchanges import AsyncExchanges, Exchanges, Finish
from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.layers import EmbeddedInputs, SlicedLayers, layer_kind
from reelweave.train.sampling.scalefusion.schedule import (
    DEFAULT,
    PieceLaunch,
    Slicing,
    Wait,
    schedule,
)


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
        dit = self.dit
        layers = self.layers(x_BCTHW, timestep_input_B, conditions, self.slicing, window)
        frames, positions = layers.division.frames, layers.division.positions
        values_BTSV = torch.unflatten(tokens(x_BCTHW, dit.patch), 1, (frames.cells.tokens, -1))
        outputs = self._run(layers, layers.embed(values_BTSV))
        values_BTSV = torch.cat([layers.leave(x_BWCD) for x_BWCD in outputs], dim=2)
        ranks = range(positions.ranks)
        values_BTSV = gather(values_BTSV, [positions.total(other) for other in ranks], self.group, dim=2)
        cells = [positions.part(index, other) for other in ranks for index in range(self.slicing.spatial)]
        order = torch.cat([torch.arange(cell.start, cell.stop) for cell in cells])
        values_BTSV = values_BTSV.index_select(2, order.argsort().to(values_BTSV.device))
        grid = dit.grid(x_BCTHW.shape[2:])
        return join(values_BTSV.reshape(len(x_BCTHW), *grid, dit.channels, -1), dit.patch)

    def layers(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        slicing: Slicing,
        window: Window | None = None,
    ) -> SlicedLayers:
        """Return the model's layers on this rank's slices, with the conditions of a pass.

        Raises:
            UsageError: there are more slices than frames or places.
        """
        dit, size = self.dit, x_BCTHW.shape[2:]
        grid = dit.grid(size)
        full_grid, local = (grid, slice(None)) if window is None else dit.place_window(size, window)
        inputs = EmbeddedInputs(
            dit.embed_time(time_features(timestep_input_B, TIME_WIDTH)),
            dit.embed_text(conditions.context_BMD),
            conditions.mask_BM,
        )
        division = TokenDivision.of(grid[0], grid[1] * grid[2], slicing, dist.get_world_size(self.group))
        rotation = dit.rotation([full_grid], local, x_BCTHW.device)
        places_LD = dit.places([full_grid], local, x_BCTHW.device)
        return SlicedLayers(dit, division, inputs, rotation, places_LD, dist.get_rank(self.group))

    def _run(self, layers: SlicedLayers, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Follow the schedule from the parts of the input to those of the last layer."""
        # Pieces that wait to be sent, by layer, slice that needs them, and part they come of.
        packed = {
            (0, index, part): rows
            for part, x_BWCD in enumerate(parts)
            for index, rows in enumerate(layers.pack(0, x_BWCD))
        }
        arriving: dict[tuple[int, int], tuple[torch.Tensor, list[Finish]]] = {}
        outputs: list[torch.Tensor] = []
        for operation in schedule(self.slicing, len(layers.blocks)):
            layer, index = operation.layer, operation.slice
            # A piece is sent as soon as the schedule says, into the place where its slice is gathered.
            if isinstance(operation, PieceLaunch):
                rows = packed.pop((layer, index, operation.part))
                if (layer, index) not in arriving:
                    arriving[layer, index] = (layers.receiver(layer, index, rows), [])
                received_WCBD, finishes = arriving[layer, index]
                finishes.append(self._start(layers, operation, rows, received_WCBD))
            elif isinstance(operation, Wait):
                for finish in arriving[layer, index][1]:
                    finish()
            else:
                # All pieces of a slice have come: compute it, and cut its result for the next layer.
                y_BWCD = layers.compute(layer, index, arriving.pop((layer, index))[0])
                if layer + 1 == 2 * len(layers.blocks):
                    outputs.append(y_BWCD)
                else:
                    for other, rows in enumerate(layers.pack(layer + 1, y_BWCD)):
                        packed[layer + 1, other, index] = rows
        return outputs

    def _start(
        self, layers: SlicedLayers, launch: PieceLaunch, rows: torch.Tensor, received_WCBD: torch.Tensor
    ) -> Finish:
        kind, rank = layer_kind(launch.layer), layers.rank
        goals = layers.division.cut(kind).counts(launch.slice)
        sources = layers.division.whole(kind)
        return self.exchanges.start(
            rows,
            received_WCBD[sources.slices.part(launch.part)].flatten(0, 1),
            [count * sources.counts(launch.part)[rank] for count in goals],
            [count * goals[rank] for count in sources.counts(launch.part)],
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
