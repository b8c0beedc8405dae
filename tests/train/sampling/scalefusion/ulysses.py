"""Ulysses for an ST-DiT, a baseline: ranks keep their places and exchange heads for spatial attention."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from reelweave.train.models.attention.attend import Attend
from reelweave.train.models.attention.patches import join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import MultiHeadAttention, Rotation, TokenLayout, tokens
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.slices import SliceSharding
from reelweave.train.parallel.context.ulysses import Ulysses
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.sampling.scalefusion.runner import sliceable


class UlyssesSTDiT:
    """`ModelRunner` of an ST-DiT with heads exchanged for spatial attention (Jacobs et al. 2023).

    Each block sends queries, keys, values and outputs: four activations where DSP sends two.

    Args:
        dit: model, replicated on all ranks; their number divides its heads.
        group: the ranks.

    Raises:
        UsageError: the model is no ST-DiT, attends over all tokens, or has sharded weights.
    """

    def __init__(self, dit: Denoiser, group: dist.ProcessGroup) -> None:
        self.dit, self.group = sliceable(dit), group

    @torch.no_grad()
    def __call__(
        self,
        x_BCTHW: torch.Tensor,
        timestep_input_B: torch.Tensor,
        conditions: Conditions,
        window: Window | None = None,
    ) -> torch.Tensor:
        dit, device, ranks = self.dit, x_BCTHW.device, dist.get_world_size(self.group)
        grid, rank = dit.grid(x_BCTHW.shape[2:]), dist.get_rank(self.group)
        by_place = SliceSharding.of([grid], "place", ranks)
        of_ranks = [by_place.tokens(index) for index in range(ranks)]
        cut, order = Partition(tuple(map(len, of_ranks))), torch.cat(of_ranks)
        full_grid, positions_L = grid, torch.arange(len(order))
        if window is not None:
            full_grid, positions_L = dit.place_window(x_BCTHW.shape[2:], window)
        local = positions_L[of_ranks[rank]].to(device)
        inner = _Reordered(
            order.argsort().to(device), order.to(device), SpatialTemporalAttention([grid], "frame")
        )
        within_frames = _OverHeads(Ulysses(self.group, cut, inner), dit.rotation([full_grid], local, device))
        pack = TokenLayout(local=local, grids=by_place.grids[rank], within_frames=within_frames)
        values_BLV = tokens(x_BCTHW, dit.patch)[:, of_ranks[rank].to(device)]
        values_BLV = dit.denoise(values_BLV, timestep_input_B, *conditions, [full_grid], pack)
        values_BLV = gather(values_BLV, cut.lengths, self.group).index_select(1, inner.inward)
        return join(values_BLV.reshape(len(x_BCTHW), *grid, dit.channels, -1), dit.patch)


@dataclass(frozen=True, eq=False)
class _OverHeads:
    """Spatial attention of tokens that are sharded by place."""

    attend: Attend
    rotation: Rotation

    def __call__(self, attention: MultiHeadAttention, h_BLD: torch.Tensor) -> torch.Tensor:
        y_BLD: torch.Tensor = attention(h_BLD, h_BLD, self.rotation, blocks=self.attend)
        return y_BLD


@dataclass(frozen=True, eq=False)
class _Reordered:
    """MultiHeadAttention of tokens in another order.

    Attributes:
        inward: place of each token of the inner order in the outer one, int64 [L].
        outward: the inverse.
        inner: attention in the inner order.
    """

    inward: torch.Tensor
    outward: torch.Tensor
    inner: Attend

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        q, k, v = (x_BHLD.index_select(2, self.inward) for x_BHLD in (q_BHLD, k_BHMD, v_BHMD))
        return self.inner.attend(q, k, v).index_select(2, self.outward)
