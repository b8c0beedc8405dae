"""Wan 2.1 and 2.2 of diffusers, text to video."""

from pathlib import Path

import torch

from train.config.model import DiffusersConfig
from train.models.attention.positions import Window
from train.models.dit import TokenLayout
from train.models.published.context_parallel import Placed, Rotation, SelfAttention, placed
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
        _, here_L = self.placed(x_BCTHW.shape[2:], window)
        here_L = here_L.to(x_BCTHW.device)

        def select(rotation: Rotation) -> Rotation:
            cos_1L1D, sin_1L1D = rotation
            return cos_1L1D[:, here_L], sin_1L1D[:, here_L]

        with placed(self.model.rope, window.whole, select):
            return super().forward(x_BCTHW, t_B, context_BMD, mask_BM)

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

    def _predict_part(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        grid: tuple[int, int, int],
        pack: TokenLayout,
    ) -> torch.Tensor:
        assert pack.own is not None, "checked by denoise"
        attend = pack.own

        def select(rotation: Rotation) -> Placed:
            cos_1L1D, sin_1L1D = rotation
            return Placed((cos_1L1D[:, pack.here], sin_1L1D[:, pack.here]), attend)

        with placed(self.model.rope, self._latent_size(grid), select):
            return self._predict(x_BCTHW, time_B, context_BMD, mask_BM)

    def _attention(self, video: int, text: int) -> int:
        return int(self.model.config.num_layers * 4 * video * (video + text) * self._width)

    def _text_width(self) -> int:
        return int(self.model.config.text_dim)
