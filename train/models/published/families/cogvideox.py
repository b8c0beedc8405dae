"""CogVideoX 2B, 5B and 1.5 of diffusers, text to video."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import TextConfig
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.models.dit import TokenLayout
from reelweave.train.models.published.context_parallel import JointAttention, Placed, Rotation
from reelweave.train.models.published.names.cogvideox import COGVIDEOX_NAMES
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.vae_base import PublishedVae


class CogVideoXVae(PublishedVae):
    """VAE that decodes two latent frames at a time."""

    source = "AutoencoderKLCogVideoX"
    fixed = ("block_out_channels", "temporal_compression_ratio")

    @property
    def frames_step(self) -> int:
        return 2 * self.compression[0]

    def check_frames(self, latent_frames: int) -> None:
        if latent_frames % 2 == 0:
            raise UsageError(
                f"CogVideoX's VAE decodes 1 + a multiple of 8 frames, not {1 + 4 * (latent_frames - 1)}; take another"
                " number"
            )

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode two frames at a time, one more at first where their number is odd."""
        frames, each = latents_BCTHW.shape[2], self.vae.num_latent_frames_batch_size
        odd, cache, chunks = frames % each, None, []
        for first in range(0, max(frames - odd, 1), each):
            x = latents_BCTHW[:, :, first + (odd if first else 0) : first + each + odd]
            if self.vae.post_quant_conv is not None:
                x = self.vae.post_quant_conv(x)
            x, cache = self.vae.decoder(x, conv_cache=cache)
            chunks.append(x)
        return torch.cat(chunks, dim=2)


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
    joint_text = True
    keys = frozenset[str]()
    vae = CogVideoXVae
    names = COGVIDEOX_NAMES

    @classmethod
    def frame_rate(cls, config: DiffusersConfig, described: Mapping[str, Any]) -> float:  # noqa: ARG003
        return 8.0 if described.get("patch_size_t") is None else 16.0

    def _prepare(self) -> None:
        theirs = self.model.config
        self._base = (theirs.sample_height // theirs.patch_size, theirs.sample_width // theirs.patch_size)
        if theirs.patch_size_t is not None:
            self.largest = (math.inf, *self._base)
        for block in self.model.transformer_blocks:
            block.attn1.set_processor(JointAttention(block.attn1.processor))

    @property
    def text_length(self) -> int:
        return int(self.model.config.max_text_seq_length)

    def compare_text(self, text: TextConfig) -> list[str]:
        if not isinstance(text, TransformersTextConfig):
            return []
        if text.padding == "mask":
            return [
                f"text.padding=mask: {self.source} was trained with the encoder's padding as text; set text.padding"
                f" to text, and text.max_text_tokens to {self.text_length}"
            ]
        if text.max_text_tokens == self.text_length:
            return []
        return [
            f"text.max_text_tokens={text.max_text_tokens}: {self.source} was trained with captions padded to"
            f" {self.text_length} tokens; zeros take the place of the others"
        ]

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        rotation = self._rotation(self.grid(x_BCTHW.shape[2:]), x_BCTHW.device)
        return self._run(x_BCTHW, time_B, self.fill_context(context_BMD, mask_BM), rotation)

    def text_in_sequence(self, mask_BM: torch.Tensor, parts: int) -> torch.Tensor:  # noqa: ARG002
        return mask_BM.new_ones(len(mask_BM), self.text_length)

    def _predict_part(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        grid: tuple[int, int, int],
        pack: TokenLayout,
    ) -> torch.Tensor:
        assert pack.self_attend is not None, "checked by denoise"
        text_BMD = self.fill_context(context_BMD, mask_BM)[:, pack.local_text]
        rotation = self._rotation(grid, x_BCTHW.device)
        if rotation is not None:
            rotation = rotation[0][pack.local], rotation[1][pack.local]
        with self._added_positions(grid, pack):
            return self._run(x_BCTHW, time_B, text_BMD, Placed(rotation, pack.self_attend, pack.joint))

    def _run(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        text_BMD: torch.Tensor,
        rotation: Rotation | Placed | None,
    ) -> torch.Tensor:
        y_BTCHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW.transpose(1, 2),
            timestep=time_B.round(),
            encoder_hidden_states=text_BMD,
            image_rotary_emb=rotation,
            return_dict=False,
        )[0]
        return y_BTCHW.transpose(1, 2)

    @contextmanager
    def _added_positions(self, grid: tuple[int, int, int], pack: TokenLayout) -> Iterator[None]:
        """Let the patch embedding add the whole video's positions to the local tokens (2B)."""
        embed = self.model.patch_embed
        if not embed.use_positional_embeddings:
            yield
            return
        frames, rows, columns = self._latent_size(grid)
        clip = (frames - 1) * embed.temporal_compression_ratio + 1
        M = self.text_length

        def add(_module: nn.Module, _inputs: Any, x_BND: torch.Tensor) -> torch.Tensor:
            joint_1ND = embed._get_positional_embeddings(rows, columns, clip, device=x_BND.device)
            local = joint_1ND[:, :M][:, pack.local_text], joint_1ND[:, M:][:, pack.local]
            return x_BND + torch.cat(local, dim=1).to(x_BND.dtype)

        hook = embed.register_forward_hook(add)
        embed.use_positional_embeddings = False
        try:
            yield
        finally:
            embed.use_positional_embeddings = True
            hook.remove()

    def _rotation(self, grid: tuple[int, int, int], device: torch.device) -> Rotation | None:
        """Return cosines and sines of rotary positions as in CogVideoXPipeline; None for the 2B model."""
        theirs = self.model.config
        if not theirs.use_rotary_positional_embeddings:
            return None
        with torch.device("cpu"):  # modules make tensors when they are imported: the wavelets of Cosmos
            from diffusers.models.embeddings import get_3d_rotary_pos_embed
            from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

        frames, rows, columns = grid
        if theirs.patch_size_t is None:
            crop = get_resize_crop_region_for_grid((rows, columns), self._base[1], self._base[0])
            kind = {"crops_coords": crop}
        else:
            kind = {"crops_coords": None, "grid_type": "slice", "max_size": self._base}
        rotation: Rotation = get_3d_rotary_pos_embed(
            embed_dim=theirs.attention_head_dim,
            grid_size=(rows, columns),
            temporal_size=frames,
            device=device,
            **kind,
        )
        return rotation
