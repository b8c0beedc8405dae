"""Wan 2.1 and 2.2 of diffusers, text to video and image to video."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import InputRows
from reelweave.train.models.published.context_parallel import Rotation, SelfAttention, select_positions
from reelweave.train.models.published.experts import times_of
from reelweave.train.models.published.families.wan_vae import WanVae
from reelweave.train.models.published.folder import PIPELINE, pipeline_description
from reelweave.train.models.published.names.wan import WAN_NAMES
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.size import PublishedSize
from reelweave.train.objectives.first_frames import first_frame_channels, picture_condition

_MASKS = 4
"""Mask channels of image-to-video models: one for each video frame of a latent frame."""
_5B_CHANNELS = 48
_14B = PublishedSize(layers=40, hidden=5120, heads=40, inner=13824, parameters=14.3e9, text_tokens=512)
_SIZES = {
    "wan2.1-t2v-1.3b": PublishedSize(
        layers=30, hidden=1536, heads=12, inner=8960, parameters=1.4e9, text_tokens=512
    ),
    "wan2.1-t2v-14b": _14B,
    "wan2.2-t2v-a14b": replace(_14B, parameters=2 * _14B.parameters),
}


class Wan(DiffusersDenoiser):
    """Flow matching; timestep input 1000 t; captions are zero-padded to 512 tokens, which attention includes.

    Of two experts (`reelweave.train.models.published.experts`), this is one. A picture is given in one of two forms:

    - Models with ``in_channels`` for it read masks and the latents of the picture with grey frames behind it.
    - Models of a pipeline with ``expand_timesteps`` (2.2 5B) read the clean latents in place of the noisy ones, at time
      0. Predictions there are what leads to them, so that any solver keeps them. Without given frames all times are
      equal, and one per sample is passed.
    """

    source = "WanTransformer3DModel"
    objectives = ("flow",)
    stem = r"^patch_embedding$|time_embedder\.linear_1$|text_embedder\.linear_1$"
    rows = ((r"time_", "sample"), (r"text_embedder|attn2\.to_[kv]$", "text"))
    blocks = ("blocks",)
    token_dim = 1
    keys = frozenset({"boundary", "text_tokens"})
    vae = WanVae
    sizes = _SIZES
    names = WAN_NAMES

    @classmethod
    def frame_rate(cls, config: DiffusersConfig, described: Mapping[str, Any]) -> float:
        """Return 24 for Wan 2.2 5B and 16 for others; a copy of 5B without its pipeline is known by its channels."""
        if described.get("in_channels") == _5B_CHANNELS:
            return 24.0
        return 24.0 if pipeline_description(config.name, "model.name").get("expand_timesteps") else 16.0

    def _prepare(self) -> None:
        self.times = times_of(self.config)
        self.largest = (self.model.config.rope_max_seq_len,) * 3
        for block in self.model.blocks:
            block.attn1.set_processor(SelfAttention(block.attn1.processor))

    def condition(self, latents_BCTHW: torch.Tensor, num_given: Sequence[int]) -> torch.Tensor:
        if not self.reads_picture:
            return super().condition(latents_BCTHW, num_given)
        if set(num_given) != {1}:
            raise UsageError(
                f"model.name={self.config.name!r} makes the frames behind a picture, and stills have none: leave 1 out"
                " of stream.buckets.frames"
            )
        return picture_condition(latents_BCTHW, _MASKS)

    def forward(
        self,
        x_BCTHW: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        window: Window | None = None,
    ) -> torch.Tensor:
        if window is None:
            return super().forward(x_BCTHW, t_B, context_BMD, mask_BM)
        _, here_L = self.place_window(x_BCTHW.shape[2:], window)
        here_L = here_L.to(x_BCTHW.device)

        def select(rotation: Rotation) -> Rotation:
            cos_1L1D, sin_1L1D = rotation
            return cos_1L1D[:, here_L], sin_1L1D[:, here_L]

        with select_positions(self.model.rope, window.full_size, select):
            return super().forward(x_BCTHW, t_B, context_BMD, mask_BM)

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        context_BMD = self.fill_context(context_BMD, mask_BM)
        if not self.keeps_given:
            return self._velocity(x_BCTHW, time_B, context_BMD)
        channels = x_BCTHW.shape[1] - 1
        noisy_BCTHW, mask_B1THW, clean_BCTHW = torch.split(x_BCTHW, [channels // 2, 1, channels // 2], dim=1)
        given_B1THW = mask_B1THW > 0
        t, h, w = self.patch
        given_BL = given_B1THW[:, 0, ::t, ::h, ::w].flatten(1)
        time_BL = time_B[:, None].where(~given_BL, 0)
        input_BCTHW = torch.where(given_B1THW, clean_BCTHW, noisy_BCTHW)
        y_BCTHW = self._velocity(input_BCTHW, time_BL, context_BMD)
        t_B1111 = (time_B / self.time_unit)[:, None, None, None, None]
        kept_BCTHW = (noisy_BCTHW - clean_BCTHW) / t_B1111
        return torch.where(given_B1THW, kept_BCTHW, y_BCTHW)

    def _velocity(self, x_BCTHW: torch.Tensor, time: torch.Tensor, context_BMD: torch.Tensor) -> torch.Tensor:
        """Return the model's output for times of samples [B] or tokens [B, L]."""
        y_BCTHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW, timestep=time, encoder_hidden_states=context_BMD, return_dict=False
        )[0]
        return y_BCTHW

    def _text_width(self) -> int:
        return int(self.model.config.text_dim)

    def _rows(self, name: str) -> InputRows:
        return "video" if self.keeps_given and re.search("time_", name) else super()._rows(name)

    def _check_channels(self, channels: int, first_frames: FirstFramesConfig | None) -> None:
        theirs, name = self.model.config, f"model.name={self.config.name!r}"
        if theirs.image_dim is not None or theirs.added_kv_proj_dim is not None:
            raise UsageError(
                f"{name} also reads CLIP's view of the picture (image_dim={theirs.image_dim}, added_kv_proj_dim="
                f"{theirs.added_kv_proj_dim}), which is not supported: take Wan 2.2's image-to-video models, which have"
                " none"
            )
        self._fits("latents", channels, theirs.out_channels)
        more = theirs.in_channels - channels
        if more:
            self._check_picture(more, channels, first_frames)
            self.reads_picture, self.condition_channels = True, more
        elif first_frames is not None:
            if not pipeline_description(self.config.name, "model.name").get("expand_timesteps"):
                raise UsageError(
                    f"{name} makes videos from text alone: it has no channels for a picture, and no expand_timesteps in"
                    f" its {PIPELINE}. Leave train.first_frames out, or take an image-to-video model"
                )
            self.keeps_given, self.condition_channels = True, first_frame_channels(channels)

    def _check_picture(self, more: int, channels: int, first_frames: FirstFramesConfig | None) -> None:
        name = f"model.name={self.config.name!r}"
        if more != _MASKS + channels:
            raise UsageError(
                f"{name} reads {more} channels beside the noisy latents, and image to video has {_MASKS + channels}:"
                " take a text-to-video or an image-to-video model"
            )
        if first_frames is None or first_frames.dropout or first_frames.max_latent_frames > 1:
            raise UsageError(
                f"{name} always goes on from one picture: set train.first_frames={{dropout: 0, max_latent_frames: 1}},"
                " or take a text-to-video model"
            )
