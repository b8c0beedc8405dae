"""Configuration of video tokenizers: the fixed patch transform, or a published VAE."""

from typing import Literal, Self

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings


class PatchTransformConfig(Settings):
    """The fixed space-time patch transform (`reelweave.train.models.encoders.tokenizer`)."""

    kind: Literal["patch"] = "patch"
    frames: int = Field(
        2, ge=1, description="video frames per latent frame; the first frame has a latent frame of its own"
    )
    height: int = Field(4, ge=1, description="pixel rows per latent row")
    width: int = Field(4, ge=1, description="pixel columns per latent column")
    kept: int | None = Field(
        None,
        ge=1,
        description="number of coefficients kept of a patch and colour, those of low frequency first; null: all,"
        " without loss",
    )
    normalized: bool = Field(
        False,
        description="divide each coefficient by the deviation that its frequency has in natural footage, so that"
        " channels have a variance near 1",
    )

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        values = self.frames * self.height * self.width
        if self.kept is not None and self.kept > values:
            raise ValueError(f"kept ({self.kept}) must be at most the {values} values of a patch and colour")
        return self


class DiffusersVAEConfig(Settings):
    """A published VAE of diffusers, frozen (`reelweave.train.models.published.vae`)."""

    kind: Literal["diffusers"] = "diffusers"
    name: str = Field(
        description="name of a pipeline or VAE on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "vae",
        description="subfolder of the VAE in a pipeline; ignored where a local folder holds the VAE alone",
    )
    frames: int = Field(4, ge=1, description="video frames per latent frame; must match the VAE")
    height: int = Field(8, ge=1, description="pixel rows per latent row; must match the VAE")
    width: int = Field(8, ge=1, description="pixel columns per latent column; must match the VAE")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="dtype of weights and activations")
    scale: float = Field(
        1.0,
        gt=0,
        description="standard deviation that latents are scaled to: 0.5 for Cosmos 1, 1 for all others",
    )
    slicing: bool = Field(False, description="encode and decode one sample at a time, for less memory")
    tiling: bool = Field(
        False, description="encode and decode in spatial tiles, for less memory; seams may show"
    )
