"""HunyuanVideo of diffusers, text to video."""

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import TextConfig
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.models.dit import TokenLayout
from reelweave.train.models.encoders.decode_tiles import TileAxis
from reelweave.train.models.published.context_parallel import JointAttention
from reelweave.train.models.published.names.hunyuan import HUNYUAN_NAMES
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.size import PublishedSize
from reelweave.train.models.published.vae_base import PublishedVae

_SKIPPED_LAYERS = 2
_SIZES = {
    # Distilled: one pass a step.
    "hunyuanvideo": PublishedSize(
        layers=60, hidden=3072, heads=24, inner=12288, parameters=13e9, text_tokens=256, passes=1
    ),
}


class HunyuanVideoVae(PublishedVae):
    """VAE that always cuts time into tiles."""

    source = "AutoencoderKLHunyuanVideo"
    fixed = ("block_out_channels", "spatial_compression_ratio", "temporal_compression_ratio")

    def time_tiles(self) -> TileAxis | None:
        if not self.vae.use_framewise_decoding:
            return None
        size, step = self.vae.tile_sample_min_num_frames, self.vae.tile_sample_stride_num_frames
        frames = self.compression[0]
        return TileAxis(size // frames, step // frames, step, size - step)


class HunyuanVideo(DiffusersDenoiser):
    """Flow matching; timestep input 1000 t, guidance input 1000 times the guidance if distilled, masked text.

    The first row of the context is the pooled caption of its second encoder (CLIP), zero-padded to the width of
    the first's (LLaMA); see `text.pooled`.
    """

    source = "HunyuanVideoTransformer3DModel"
    objectives = ("flow",)
    lora_targets = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
    )
    stem = (
        r"^x_embedder|^context_embedder\.proj_in$"
        r"|^time_text_embed.*\.linear_1$|^context_embedder\.time_text_embed.*\.linear_1$"
    )
    rows = (
        (r"time_text_embed|norm[^.]*\.linear$|norm_out\.linear", "sample"),
        (r"^context_embedder|add_[qkv]_proj$|to_add_out$|ff_context", "text"),
        (r"^single_transformer_blocks", "both"),
    )
    blocks = ("transformer_blocks", "single_transformer_blocks")
    joint_text = True
    keys = frozenset({"guidance"})
    rate = 24.0
    vae = HunyuanVideoVae
    names = HUNYUAN_NAMES
    sizes = _SIZES

    def _prepare(self) -> None:
        theirs = self.model.config
        self.pooled_width = theirs.pooled_projection_dim
        if theirs.guidance_embeds != (self.config.guidance is not None):
            needed = (
                "was distilled and must be told a guidance, such as 6"
                if theirs.guidance_embeds
                else "takes none"
            )
            raise UsageError(f"model.guidance: {self.config.name} {needed}")
        if theirs.image_condition_type is not None:
            raise UsageError(
                f"model.name={self.config.name!r} makes videos of images, which is not supported"
            )
        for block in (*self.model.transformer_blocks, *self.model.single_transformer_blocks):
            block.attn.set_processor(JointAttention(block.attn.processor))

    def compare_text(self, text: TextConfig) -> list[str]:
        lines = super().compare_text(text)
        if not isinstance(text, TransformersTextConfig):
            return lines
        if text.template == "{}":
            lines.append(
                f"text.template is unset: {self.source} was trained with captions in its pipeline's prompt template;"
                " set text.template to it, and text.template_tokens to 95"
            )
        if text.skipped_layers != _SKIPPED_LAYERS:
            lines.append(
                f"text.skipped_layers={text.skipped_layers}: {self.source} was trained with {_SKIPPED_LAYERS}"
            )
        return lines

    @property
    def text_length(self) -> None:
        return

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        guidance = self.config.guidance
        y_BCTHW: torch.Tensor = self.model(
            hidden_states=x_BCTHW,
            timestep=time_B,
            encoder_hidden_states=context_BMD[:, 1:],
            encoder_attention_mask=mask_BM[:, 1:],
            pooled_projections=context_BMD[:, 0, : self.pooled_width],
            guidance=None if guidance is None else torch.full_like(time_B, 1000 * guidance),
            return_dict=False,
        )[0]
        return y_BCTHW

    def text_in_sequence(self, mask_BM: torch.Tensor, parts: int) -> torch.Tensor:
        # As in the model, the mask's count of tokens matters. Without any text token a block would fail.
        lengths_B = mask_BM[:, 1:].sum(dim=1)
        places_M = torch.arange(max(mask_BM.shape[1] - 1, parts), device=mask_BM.device)
        return places_M < lengths_B[:, None]

    def _predict_part(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        grid: tuple[int, int, int],
        pack: TokenLayout,
    ) -> torch.Tensor:
        # The refiner sees the whole text, and its gradient on each rank is that of the local tokens.
        refined = self.model.context_embedder.register_forward_hook(
            lambda _module, _inputs, text_BMD: text_BMD[:, pack.local_text]
        )
        try:
            return super()._predict_part(x_BCTHW, time_B, context_BMD, mask_BM, grid, pack)
        finally:
            refined.remove()

    def _attention(self, video: int, text: int) -> int:
        theirs = self.model.config
        joint = (theirs.num_layers + theirs.num_single_layers) * (video + text) ** 2
        return int(4 * (joint + theirs.num_refiner_layers * text**2) * self._width)
