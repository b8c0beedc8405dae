"""The architectures that can be trained, as configurations; importing them loads no torch."""

from typing import Literal

from pydantic import BaseModel, Field, model_validator


class TransformerConfig(BaseModel, frozen=True, extra="forbid"):
    """What all of our diffusion transformers share."""

    hidden: int = Field(384, ge=2, description="width of a token; at least the values in one patch")
    heads: int = Field(6, ge=1, description="attention heads; hidden / heads is even and at least 6")
    layers: int = Field(4, ge=1, description="transformer blocks")
    mlp_ratio: float = Field(4.0, gt=0, description="width of the MLP in units of hidden")
    patch: tuple[int, int, int] = Field((1, 2, 2), description="latent frames, rows and columns per token")
    adaln_rank: int | None = Field(
        None,
        ge=1,
        description="AdaLN-LoRA: rank of each modulation's matrix; null: full, [hidden, 9 * hidden]",
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
        """Width of the MLP."""
        return int(self.hidden * self.mlp_ratio)


class DiTConfig(TransformerConfig):
    """The diffusion transformer (`train.models.dit`)."""

    kind: Literal["dit"] = "dit"


class STDiTConfig(TransformerConfig):
    """The spatial-temporal diffusion transformer (`train.models.st_dit`)."""

    kind: Literal["st_dit"] = "st_dit"
    full_attention: bool = Field(
        False, description="attention over all tokens in each block, before spatial and temporal attention"
    )


class MMDiTConfig(TransformerConfig):
    """The transformer of two streams, video and text, with joint attention (`train.models.mmdit`)."""

    kind: Literal["mmdit"] = "mmdit"


ModelConfig = DiTConfig | STDiTConfig | MMDiTConfig
"""Ours; told apart by `kind`."""


class DiffusersConfig(BaseModel, frozen=True, extra="forbid"):
    """A published transformer of diffusers, to be trained further (`train.models.published.shared`)."""

    kind: Literal["diffusers"] = "diffusers"
    name: str = Field(
        description="name of a pipeline or model on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "transformer", description="of the pipeline; a local folder that is the model's own needs none"
    )
    patch: tuple[int, int, int] = Field(
        (1, 2, 2), description="latent frames, rows and columns per token, as the model has them; checked"
    )
    fused: bool = Field(True, description="use the fused operators (docs/patch.md)")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="type of its weights; bfloat16 only where they are frozen, under lora"
    )
    text_tokens: int | None = Field(
        None, ge=1, description="length that captions are filled up to; null: that of the family's pipeline"
    )
    guidance: float | None = Field(
        None, gt=0, description="HunyuanVideo: the guidance that a distilled model is told; 6 in its pipeline"
    )
    fps: float | None = Field(
        None,
        gt=0,
        description="Cosmos: frames per second that positions in time are told; null: not told, as images",
    )
