"""Cosmos of diffusers, text to world."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.dit import TokenLayout
from reelweave.train.models.published.context_parallel import JointAttention, select_positions
from reelweave.train.models.published.names.cosmos import COSMOS_1_NAMES, COSMOS_2_NAMES
from reelweave.train.models.published.names.native import NativeNames
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.vae_base import PublishedVae

_BASE_FPS = 24.0
"""Rate at which positions count frames: with it they are the same as without ``model.fps``."""


class CosmosVae(PublishedVae):
    """VAE whose latents are a point, with statistics for each latent frame of the first version."""

    source = "AutoencoderKLCosmos"
    variational = False
    fixed = (
        "encoder_block_out_channels",
        "decode_block_out_channels",
        "patch_size",
        "patch_type",
        "temporal_compression_ratio",
    )


class Cosmos(DiffusersDenoiser):
    """EDM (Cosmos 1) or flow matching (Cosmos 2); captions are zero-padded to 512 tokens.

    The timestep input equals the objective's. Cosmos 2's pipeline uses t = sigma / (1 + sigma) and c_in = 1 -
    t. That turns x_0 + sigma eps into the latent of flow matching; c_skip = 1 - t and c_out = -t yield its
    velocity.
    """

    source = "CosmosTransformer3DModel"
    objectives = ("edm", "flow")
    time_unit = 1.0
    stem = r"^patch_embed|^time_embed\.t_embedder\.linear_1$|attn2\.to_[kv]$"
    rows = ((r"time_embed|norm.*linear_[12]$", "sample"), (r"attn2\.to_[kv]$|crossattn_proj", "text"))
    keys = frozenset({"fps", "text_tokens"})
    vae = CosmosVae

    @classmethod
    def frame_rate(cls, config: DiffusersConfig, described: Mapping[str, Any]) -> float:  # noqa: ARG003
        return config.fps or _BASE_FPS

    @classmethod
    def names_of(cls, described: Mapping[str, Any]) -> NativeNames:
        """Return the names of Predict2, or of the first version, which alone learns positions."""
        return COSMOS_1_NAMES if described.get("extra_pos_embed_type") else COSMOS_2_NAMES

    def _prepare(self) -> None:
        theirs = self.model.config
        (T, H, W), (t, h, w) = theirs.max_size, self.patch
        self.largest = (T // t, H // h, W // w)
        for block in self.model.transformer_blocks:
            block.attn1.set_processor(JointAttention(block.attn1.processor, pairs=-2))

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        padding = (
            x_BCTHW.new_zeros(1, 1, *x_BCTHW.shape[-2:]) if self.model.config.concat_padding_mask else None
        )
        y_BCTHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW,
            timestep=time_B,
            encoder_hidden_states=self.fill_context(context_BMD, mask_BM),
            fps=self.config.fps,
            padding_mask=padding,
            return_dict=False,
        )[0]
        return y_BCTHW

    def _predict_part(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        grid: tuple[int, int, int],
        pack: TokenLayout,
    ) -> torch.Tensor:
        learned, size = self.model.learnable_pos_embed, self._latent_size(grid)
        with (
            nullcontext()
            if learned is None
            else select_positions(learned, size, lambda x_BLD: x_BLD[:, pack.local])
        ):
            return super()._predict_part(x_BCTHW, time_B, context_BMD, mask_BM, grid, pack)

    def _text_width(self) -> int:
        theirs = self.model.config
        return int(
            theirs.crossattn_proj_in_channels if theirs.use_crossattn_projection else theirs.text_embed_dim
        )
