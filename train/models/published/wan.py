"""Wan 2.1 and 2.2 of diffusers, text to video."""

from collections.abc import Sequence
from pathlib import Path

import torch

from train.config.model import DiffusersConfig
from train.models.attention.positions import Window
from train.models.dit import TokenLayout, tokens
from train.models.published.context_parallel import SelfAttention, in_a_row, placed
from train.models.published.shared import DiffusersDenoiser


class Wan(DiffusersDenoiser):
    """Flow matching; timestep input 1000 t; captions are zero-padded to 512 tokens, which attention includes.

    Wan 2.2's 5B takes a time per token in its pipeline. Without an image condition all are equal, so one time
    per sample is passed.
    """

    source = "WanTransformer3DModel"
    objectives = ("flow",)
    stem = r"^patch_embedding$|time_embedder\.linear_1$|text_embedder\.linear_1$"
    rows = ((r"time_", "sample"), (r"text_embedder|attn2\.to_[kv]$", "text"))
    blocks = ("blocks",)

    def __init__(self, config: DiffusersConfig, folder: Path, channels: int, text_width: int) -> None:
        super().__init__(config, folder, channels, text_width)
        self.largest = (self.model.config.rope_max_seq_len,) * 3
        for block in self.model.blocks:
            block.attn1.set_processor(SelfAttention(block.attn1.processor))

    @property
    def text_length(self) -> int:
        return self.config.text_tokens or 512

    @property
    def full_heads(self) -> int:
        """Number of heads of attention over all tokens."""
        return int(self.model.config.num_attention_heads)

    def forward(
        self,
        x_BCTHW: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        window: Window | None = None,
    ) -> torch.Tensor:
        if window is None:
            return super().forward(x_BCTHW, t_B, context_BMD, mask_BM)
        _, here = self.placed(x_BCTHW.shape[2:], window)
        with placed(self.model.rope, window.whole, here.to(x_BCTHW.device)):
            return super().forward(x_BCTHW, t_B, context_BMD, mask_BM)

    def denoise(
        self,
        values_BLV: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        grids: Sequence[tuple[int, int, int]],
        pack: TokenLayout,
    ) -> torch.Tensor:
        """Predict some tokens of a batch of one grid, as in `train.models.dit.DiT.denoise`.

        Raises:
            UsageError: the tokens are packed.
        """
        if mask_BM is None or pack.own is None:
            raise self.no_packs()
        latent_size = [n * size for n, size in zip(grids[0], self.patch, strict=True)]
        with placed(self.model.rope, latent_size, pack.here, pack.own):
            x_BCTHW = in_a_row(values_BLV, self.patch)
            y_BCTHW = self._predict(x_BCTHW, t_B * self.time_unit, context_BMD, mask_BM)
        return tokens(y_BCTHW, self.patch)

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        y_BCTHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW,
            timestep=time_B,
            encoder_hidden_states=self.filled(context_BMD, mask_BM),
            return_dict=False,
        )[0]
        return y_BCTHW

    def _attention(self, video: int, text: int) -> int:
        return int(self.model.config.num_layers * 4 * video * (video + text) * self._width)

    def _text_width(self) -> int:
        return int(self.model.config.text_dim)
