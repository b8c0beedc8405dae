"""Configuration of sampling; importing it loads no torch."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings
from reelweave.train.sampling.cache.config import BlockCacheConfig

Solver = Literal["euler", "heun", "res", "unipc", "unipc3", "few_step"]
SEEDS = 1 << 32
"""Number of seeds: torch's generator on the CPU takes 32 bits and ignores others without an error."""
Degree = Annotated[int, Field(ge=1)]


class SampleConfig(Settings):
    """Size, solver and guidance of a sampled video."""

    frames: int = Field(ge=1, description="number of frames")
    height: int = Field(ge=1, description="height in pixels")
    width: int = Field(ge=1, description="width in pixels")
    steps: int = Field(50, ge=1, description="solver steps from noise to video")
    timesteps: Annotated[tuple[float, ...], Field(min_length=1)] | Literal["published"] | None = Field(
        None,
        description="times of the steps in the objective's unit (flow: t, edm: sigma, ddpm: level), falling."
        " published: as many as steps, at the times of the UniPC that Wan's pipelines sample with. null: as many as"
        " steps, spaced as in training",
    )
    solver: Solver = Field(
        "euler",
        description="solver. euler: order 1. heun: order 2, two evaluations per step. res and unipc: order 2, one"
        " evaluation per step. unipc3: order 3. few_step: for distilled weights, new noise in each step",
    )
    guidance: float = Field(
        5.0,
        ge=0,
        description="classifier-free guidance scale; 1 is the caption alone, at half the cost",
    )
    guidance_2: float | None = Field(
        None,
        ge=0,
        description="guidance scale of the expert for little noise (Wan 2.2); null: guidance",
    )
    negative_prompt: str = Field("", description="caption that guidance leads away from")
    rescale: float = Field(
        0.0, ge=0, le=1, description="share of the guided prediction with the spread of the caption's own"
    )
    batched: bool = Field(
        False, description="run the passes of guidance as one batch: faster for small videos, more memory"
    )
    image_guidance: float | None = Field(
        None,
        ge=0,
        description="guidance scale of given first frames; null: they are in all passes, without one of their own",
    )
    cache: BlockCacheConfig | None = Field(None, description="skip blocks that change little; null: run all")
    seed: int = Field(0, ge=0, lt=SEEDS, description="seed of the noise")

    @model_validator(mode="after")
    def _steps_are_told_once(self) -> "SampleConfig":
        if "steps" in self.model_fields_set and self.steps != self.total_steps:
            raise ValueError(f"steps is {self.steps}, but timesteps are {self.total_steps}: leave one out")
        if self.timesteps == "published" and self.solver == "few_step":
            raise ValueError(
                "timesteps=published are those of UniPC, and few_step needs times of its distillation"
            )
        return self

    @property
    def total_steps(self) -> int:
        return len(self.timesteps) if isinstance(self.timesteps, tuple) else self.steps


class LatentParallelConfig(Settings):
    """Latent Parallelism: parts of the latents by themselves, blended every step; approximate.

    What is null is the mode's.
    """

    mode: Literal["balanced", "paper", "unite"] = Field(
        "balanced",
        description="rules of the division. paper: strict rotation, ceil parts, linear ramps (arXiv 2512.07350v1)."
        " unite: phases of axes, cosine ramps, falling overlap, an exact first step and aids to guidance, as in its"
        " authors' code. balanced: no empty part, ramps without wasted ends",
    )
    overlap: float | None = Field(
        None, ge=0, le=4, description="overlap of neighbours, in units of a part (paper: 0.5, else 0.4)"
    )
    last_overlap: float | None = Field(
        None, ge=0, le=4, description="overlap at the last step (unite: half the first, else the same)"
    )
    rotate: bool = Field(
        True,
        description="divide another axis each step; false: the first axis that has a patch for each part",
    )
    positions: Literal["global", "local"] = Field(
        "global", description="positions of a part's tokens: those in the whole video, or from 0"
    )
    exact_steps: int | None = Field(None, ge=0, description="first steps without division (unite: 1, else 0)")
    guidance_decay: bool | None = Field(
        None, description="aid: guidance falls by a tenth from 60 % of the steps on (unite: true, else false)"
    )
    delta_smoothing: bool | None = Field(
        None, description="aid: smooth differences of guidance passes from 55 % on (unite: true, else false)"
    )
    rescale: bool | None = Field(
        None,
        description="aid: give the prediction the conditioned pass's spread from 20 % on (unite: true, else false)",
    )
    final_smoothing: bool | None = Field(
        None, description="aid: smooth the blended prediction from 85 % on (unite: true, else false)"
    )


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
    scalefusion: Literal["measured"] | tuple[int, int, int, int] | None = Field(
        None,
        description="execution of an ST-DiT by the ranks of ring and ulysses. N_T, N_S, L_T and L_S of ScaleFusion,"
        " or measured: in slices, exchanged while others are computed; null: whole layers",
    )
    vae_ranks: Degree | None = Field(
        None, description="ranks that decode a video's tiles; None: all ranks of the video"
    )
    latent_parallel: LatentParallelConfig = Field(
        LatentParallelConfig(), description="division of latents over lp groups"
    )
