"""CogVideoX 2B, 5B and 1.5 of diffusers, text to video."""

import math
from pathlib import Path

import torch

from train.config.model import DiffusersConfig
from train.models.attention.patches import Patch
from train.models.published.shared import DiffusersDenoiser

Rotation = tuple[torch.Tensor, torch.Tensor]


class CogVideoX(DiffusersDenoiser):
    """DDPM with v-prediction; timestep input n, frames before channels, fixed length of text.

    Its pipeline treats the padding of captions as text (`text.padding: text`); otherwise padding is zeros.
    """

    source = "CogVideoXTransformer3DModel"
    objectives = ("ddpm",)
    stem = r"^patch_embed|^time_embedding\.linear_1$"
    rows = (
        (r"^patch_embed\.text_proj$", "text"),
        (r"^patch_embed|^proj_out$", "video"),
        (r"^time_embedding|\.linear$", "sample"),
        (r"", "both"),
    )

    def __init__(self, config: DiffusersConfig, folder: Path, channels: int, text_width: int) -> None:
        super().__init__(config, folder, channels, text_width)
        theirs = self.model.config
        self._base = (theirs.sample_height // theirs.patch_size, theirs.sample_width // theirs.patch_size)
        if theirs.patch_size_t is not None:
            self.largest = (math.inf, *self._base)

    @property
    def text_length(self) -> int:
        return int(self.model.config.max_text_seq_length)

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        y_BTCHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW.transpose(1, 2),
            timestep=time_B.round(),
            encoder_hidden_states=self.filled(context_BMD, mask_BM),
            image_rotary_emb=self._rotation(x_BCTHW),
            return_dict=False,
        )[0]
        return y_BTCHW.transpose(1, 2)

    def _rotation(self, x_BCTHW: torch.Tensor) -> Rotation | None:
        """Return cosines and sines of rotary positions as in CogVideoXPipeline; None for the 2B model."""
        theirs = self.model.config
        if not theirs.use_rotary_positional_embeddings:
            return None
        from diffusers.models.embeddings import get_3d_rotary_pos_embed
        from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

        frames, rows, columns = self.grid(x_BCTHW.shape[2:])
        if theirs.patch_size_t is None:
            crop = get_resize_crop_region_for_grid((rows, columns), self._base[1], self._base[0])
            kind = {"crops_coords": crop}
        else:
            kind = {"crops_coords": None, "grid_type": "slice", "max_size": self._base}
        rotation: Rotation = get_3d_rotary_pos_embed(
            embed_dim=theirs.attention_head_dim,
            grid_size=(rows, columns),
            temporal_size=frames,
            device=x_BCTHW.device,
            **kind,
        )
        return rotation

    def _attention(self, video: int, text: int) -> int:
        return int(self.model.config.num_layers * 4 * (video + text) ** 2 * self._width)

    def _patch(self) -> Patch:
        theirs = self.model.config
        return theirs.patch_size_t or 1, theirs.patch_size, theirs.patch_size
