"""Configurations of trainable architectures; importing them loads no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings


class TransformerConfig(Settings):
    """Common keys of the built-in diffusion transformers."""

    hidden: int = Field(384, ge=2, description="width of a token; at least the number of values in a patch")
    heads: int = Field(6, ge=1, description="attention heads; hidden / heads is even and at least 6")
    layers: int = Field(4, ge=1, description="transformer blocks")
    mlp_ratio: float = Field(4.0, gt=0, description="width of the MLP in units of hidden")
    patch: tuple[int, int, int] = Field((1, 2, 2), description="latent frames, rows and columns per token")
    adaln_rank: int | None = Field(
        None,
        ge=1,
        description="AdaLN-LoRA: rank of each modulation matrix; null: full rank, [hidden, 9 * hidden]",
    )
    absolute_positions: bool = Field(
        False,
        description="add sines and cosines of a token's place to its embedding. Rotary positions alone give only"
        " distances, and no layout follows from those in pure noise",
    )

    @model_validator(mode="after")
    def _fits(self) -> "TransformerConfig":
        head_width, rest = divmod(self.hidden, self.heads)
        if rest or head_width % 2 or head_width < 6:
            raise ValueError(f"hidden ({self.hidden}) / heads ({self.heads}) must be even and at least 6")
        if min(self.patch) < 1:
            raise ValueError(f"patch {self.patch} must be positive")
        return self

    @property
    def inner(self) -> int:
        """Width of the MLP's hidden layer."""
        return int(self.hidden * self.mlp_ratio)


class DiTConfig(TransformerConfig):
    """The diffusion transformer (`reelweave.train.models.dit`)."""

    kind: Literal["dit"] = "dit"


class STDiTConfig(TransformerConfig):
    """The spatial-temporal diffusion transformer (`reelweave.train.models.st_dit`)."""

    kind: Literal["st_dit"] = "st_dit"
    full_attention: bool = Field(
        False,
        description="add attention over all tokens to each block, before spatial and temporal attention",
    )


class MMDiTConfig(TransformerConfig):
    """The two-stream transformer of video and text with joint attention (`reelweave.train.models.mmdit`)."""

    kind: Literal["mmdit"] = "mmdit"


ModelConfig = DiTConfig | STDiTConfig | MMDiTConfig
"""Built-in architectures; `kind` selects one."""


class DiffusersConfig(Settings):
    """A published transformer of diffusers, for fine-tuning (`reelweave.train.models.published.shared`)."""

    kind: Literal["diffusers"] = "diffusers"
    name: str = Field(
        description="name of a pipeline or model on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "transformer",
        description="subfolder of the transformer in a pipeline; ignored where a local folder holds the model alone",
    )
    weights: Path | None = Field(
        None,
        description="weights in place of the folder's: a safetensors file or a folder of them, by the names of"
        " diffusers or of the original repository (docs/finetune.md); null: the folder's",
    )
    patch: tuple[int, int, int] = Field(
        (1, 2, 2), description="latent frames, rows and columns per token; must match the model"
    )
    fused: bool = Field(True, description="use the fused operators (docs/patch.md)")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of the weights; bfloat16 only for frozen weights, under lora"
    )
    boundary: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Wan 2.2 with two experts: time t from which transformer predicts, and below which transformer_2"
        " does; null: boundary_ratio of the pipeline's model_index.json",
    )
    text_tokens: int | None = Field(
        None,
        ge=1,
        description="length that captions are padded to; null: the length in the family's pipeline",
    )
    guidance: float | None = Field(
        None, gt=0, description="HunyuanVideo: guidance input of a distilled model; its pipeline uses 6"
    )
    fps: float | None = Field(
        None,
        gt=0,
        description="Cosmos: frames per second for positions in time; null: no frame rate, as for images",
    )


PRESETS: Mapping[str, ModelConfig] = {
    # NeMo (Patel et al. 2025), table 1, with AdaLN-LoRA of section 4.5.1.
    "dit-7b": DiTConfig(hidden=4096, heads=32, layers=28, adaln_rank=256),
    "dit-28b": DiTConfig(hidden=6144, heads=48, layers=48, adaln_rank=256),
    # NeMo, table 2, names sizes but no shapes: these are ours, with all three attentions of section 4.6.
    "st-dit-7b": STDiTConfig(hidden=3072, heads=24, layers=30, adaln_rank=256, full_attention=True),
    "st-dit-12b": STDiTConfig(hidden=4096, heads=32, layers=28, adaln_rank=256, full_attention=True),
    # Wan2.1-T2V-1.3B, MLP 8960. Its blocks share one modulation; a low rank here costs about as little.
    "wan-1.3b": DiTConfig(hidden=1536, heads=12, layers=30, mlp_ratio=8960 / 1536, adaln_rank=32),
    # Stable Diffusion 3 medium.
    "mmdit-2b": MMDiTConfig(hidden=1536, heads=24, layers=24),
    # For tests and for looking around.
    "tiny-dit": DiTConfig(hidden=48, heads=2, layers=2),
    "tiny-st-dit": STDiTConfig(hidden=48, heads=2, layers=2),
    "tiny-mmdit": MMDiTConfig(hidden=48, heads=2, layers=2),
}
"""Presets of published architectures; docs/models.md compares their parameter counts with published sizes."""
