"""Wan 2.1 and 2.2, text to video, of diffusers."""

from pathlib import Path

import torch

from train.models.config import DiffusersConfig
from train.models.diffusers_shared import DiffusersDenoiser


class Wan(DiffusersDenoiser):
    """Flow matching; told 1000 t; captions filled up with zeros to 512 tokens, which count.

    Wan 2.2's 5B is told a time per token in its pipeline; without a given image all are alike, so one is told here.
    """

    source = "WanTransformer3DModel"
    objectives = ("flow",)
    stem = r"^patch_embedding$|time_embedder\.linear_1$|text_embedder\.linear_1$"
    rows = ((r"time_", "sample"), (r"text_embedder|attn2\.to_[kv]$", "text"))
    blocks = ("blocks",)

    def __init__(self, config: DiffusersConfig, folder: Path, channels: int, text_width: int) -> None:
        super().__init__(config, folder, channels, text_width)
        self.largest = (self.model.config.rope_max_seq_len,) * 3

    @property
    def text_length(self) -> int:
        """See `DiffusersDenoiser`."""
        return self.config.text_tokens or 512

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
