"""Diffusion transformer with separate spatial and temporal attention (ST-DiT).

Zheng et al., "Open-Sora", 2024, section 3; with all three attentions in a block it is NeMo's (Patel et al.
2025, section 4.6). Spatial and temporal attention cost L * (places + frames), full attention L * L.
"""

import torch
from torch import nn

from reelweave.train.config.model import STDiTConfig
from reelweave.train.models.attention.attend import Attend
from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.dit import (
    WHOLE_SAMPLES,
    Branches,
    DiT,
    MultiHeadAttention,
    Rotation,
    TokenLayout,
    through,
)
from reelweave.train.models.modulation import modulation


class STBlock(nn.Module):
    """Optional full, spatial, temporal and cross-attention and an MLP; the identity at initialization.

    In this order, tokens sharded by place, then by frame, then by place again change ranks twice per block.
    """

    def __init__(self, config: STDiTConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden, config.inner
        self.full = MultiHeadAttention(hidden, config.heads) if config.full_attention else None
        self.spatial = MultiHeadAttention(hidden, config.heads)
        self.temporal = MultiHeadAttention(hidden, config.heads)
        self.cross_attend = MultiHeadAttention(hidden, config.heads)
        self.mlp = nn.Sequential(nn.Linear(hidden, inner), nn.GELU("tanh"), nn.Linear(inner, hidden))
        self.modulation = modulation(hidden, 15 if config.full_attention else 12, config.adaln_rank)

    def forward(
        self,
        x_BLD: torch.Tensor,
        condition_BD: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        rotation: Rotation,
        pack: TokenLayout = WHOLE_SAMPLES,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D]."""

        def own(attention: MultiHeadAttention, h_BLD: torch.Tensor, attend: Attend | None) -> torch.Tensor:
            # Scores depend on position differences, which a slice preserves.
            y_BLD: torch.Tensor = attention(h_BLD, h_BLD, rotation, blocks=attend)
            return y_BLD

        def spatial(h_BLD: torch.Tensor) -> torch.Tensor:
            if pack.within_frames is not None:
                return pack.within_frames(self.spatial, h_BLD)
            return own(self.spatial, h_BLD, SpatialTemporalAttention(pack.grids, "frame"))

        within_place, full = SpatialTemporalAttention(pack.grids, "place"), self.full
        branches: Branches = (
            spatial,
            lambda h_BLD: own(self.temporal, h_BLD, within_place),
            lambda h_BLD: self.cross_attend(h_BLD, context_BMD, mask_BM=mask_BM, blocks=pack.text),
            self.mlp,
        )
        if full is not None:
            branches = (lambda h_BLD: own(full, h_BLD, pack.self_attend), *branches)
        return through(x_BLD, branches, self.modulation(condition_BD), pack.samples)


class STDiT(DiT):
    """Diffusion transformer of `STBlock`."""

    config: STDiTConfig

    def make_blocks(self) -> list[nn.Module]:
        return [STBlock(self.config) for _ in range(self.config.layers)]

    @property
    def full_heads(self) -> int:
        return self.config.heads if self.config.full_attention else 0
