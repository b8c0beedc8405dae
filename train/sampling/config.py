"""Configuration of sampling; importing it loads no torch."""

from typing import Annotated, Literal

from pydantic import Field

from loader.settings import Settings

Solver = Literal["euler", "heun"]
Degree = Annotated[int, Field(ge=1)]


class SampleConfig(Settings):
    """Size, solver and guidance of a sampled video."""

    frames: int = Field(ge=1, description="number of frames")
    height: int = Field(ge=1, description="height in pixels")
    width: int = Field(ge=1, description="width in pixels")
    steps: int = Field(50, ge=1, description="solver steps from noise to video")
    solver: Solver = Field(
        "euler", description="ODE solver; heun evaluates the model twice per step, with a smaller error"
    )
    guidance: float = Field(
        5.0,
        ge=0,
        description="classifier-free guidance scale; 1 is the caption alone, at half the cost",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the noise")


class SampleLayoutConfig(Settings):
    """Degrees of parallel sampling, whose product is the number of ranks."""

    prompts: Degree | Literal["rest"] = Field(
        "rest",
        description="groups of ranks that make different videos; rest: as many as the ranks allow",
    )
    cfg: Degree = Field(1, description="groups of ranks that share the passes of guidance; exact")
    lp: Degree = Field(
        1,
        description="groups of ranks that divide the latents with overlap (Latent Parallelism); approximate",
    )
    ring: Degree = Field(1, description="ranks that pass keys and values around a ring; exact")
    ulysses: Degree = Field(1, description="ranks that exchange attention heads, a divisor of them; exact")
    vae_ranks: Degree | None = Field(
        None, description="ranks that decode a video's tiles; None: all ranks of the video"
    )
