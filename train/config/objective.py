"""The configurations of the objectives; importing them loads no torch."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator


class ObjectiveConfig(BaseModel, frozen=True, extra="forbid"):
    """What all objectives share."""

    caption_dropout: float = Field(
        0.1, ge=0, le=1, description="share of samples trained without a caption, for guidance when sampling"
    )


class ConstantShift(BaseModel, frozen=True, extra="forbid"):
    """The same shift for every sample: 1 is none, SD3 takes 3, Wan2.1 3 at 480p and 5 at 720p."""

    kind: Literal["constant"] = "constant"
    factor: float = Field(1.0, gt=0, description="s; above 1 there is more noise")


class RootShift(BaseModel, frozen=True, extra="forbid"):
    """s = sqrt(tokens / base_tokens): as much of a long sample is uncertain as of a short one (SD3, eq. 23)."""

    kind: Literal["root"] = "root"
    base_tokens: int = Field(1024, ge=1, description="video tokens of a sample that is not shifted")


class ExponentialShift(BaseModel, frozen=True, extra="forbid"):
    """s = exp(mu), with mu on the line through two lengths, also beyond them (FLUX.1)."""

    kind: Literal["exponential"] = "exponential"
    base_tokens: int = Field(256, ge=1, description="video tokens at which mu is base_mu")
    max_tokens: int = Field(4096, ge=1, description="video tokens at which mu is max_mu")
    base_mu: float = Field(0.5, description="ln s of short samples")
    max_mu: float = Field(1.15, description="ln s of long samples")

    @model_validator(mode="after")
    def _two_lengths(self) -> "ExponentialShift":
        if self.base_tokens >= self.max_tokens:
            raise ValueError(f"max_tokens ({self.max_tokens}) must be above base_tokens ({self.base_tokens})")
        return self


Shift = Annotated[ConstantShift | RootShift | ExponentialShift, Field(discriminator="kind")]


class FlowConfig(ObjectiveConfig, frozen=True, extra="forbid"):
    """Rectified flow (`train.objectives.flow`)."""

    name: Literal["flow"] = "flow"
    time: Literal["logit_normal", "uniform", "mode"] = Field(
        "logit_normal", description="how times t between data (0) and noise (1) are drawn"
    )
    time_mean: float = Field(
        0.0, description="logit_normal: mean of logit(t); above 0 trains more on noisy inputs"
    )
    time_std: float = Field(1.0, gt=0, description="logit_normal: standard deviation of logit(t)")
    mode_scale: float = Field(
        1.29,
        ge=-1,
        le=2 / (math.pi - 2),
        description="mode: how much the middle of the way is preferred to its ends",
    )
    shift: Shift = Field(
        ConstantShift(), description="t becomes s t / (1 + (s - 1) t), in training and in sampling"
    )
    weighting: Literal["none", "cosmap"] = Field("none", description="weight of a squared error at its time")


class EDMConfig(ObjectiveConfig, frozen=True, extra="forbid"):
    """The preconditioned denoiser of Karras et al. 2022 (`train.objectives.edm`)."""

    name: Literal["edm"] = "edm"
    p_mean: float = Field(-1.2, description="mean of ln(sigma)")
    p_std: float = Field(1.2, gt=0, description="standard deviation of ln(sigma)")
    sigma_data: float = Field(0.5, gt=0, description="standard deviation of the latents")
    sigma_min: float = Field(0.002, gt=0, description="sampling: the least noise the model is asked about")
    sigma_max: float = Field(80.0, gt=0, description="sampling: the noise it starts from")
    rho: float = Field(
        7.0, gt=0, description="sampling: above 1, steps are shorter where there is less noise"
    )

    @model_validator(mode="after")
    def _a_range(self) -> "EDMConfig":
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_max ({self.sigma_max}) must be above sigma_min ({self.sigma_min})")
        return self


class DDPMConfig(ObjectiveConfig, frozen=True, extra="forbid"):
    """Discrete-time diffusion (`train.objectives.ddpm`)."""

    name: Literal["ddpm"] = "ddpm"
    prediction: Literal["epsilon", "v"] = Field("epsilon", description="what the model predicts")
    schedule: Literal["linear", "scaled_linear", "cosine"] = Field(
        "linear", description="how the noise grows; scaled_linear: the root of beta is linear"
    )
    timesteps: int = Field(1000, ge=2, description="levels of noise")
    beta_start: float = Field(1e-4, gt=0, lt=1, description="beta of the first level; not for cosine")
    beta_end: float = Field(0.02, gt=0, lt=1, description="beta of the last level; not for cosine")
    zero_terminal_snr: bool = Field(
        False, description="rescale the schedule so that the last level is noise alone; needs prediction v"
    )
    snr_shift: float = Field(
        1.0, gt=0, description="divide every level's signal over noise by this; CogVideoX 2B takes 3"
    )
    min_snr_gamma: float | None = Field(
        None,
        gt=0,
        description="weigh errors of the clean latent by min(SNR, this), often 5; null weighs predictions alike",
    )

    @model_validator(mode="after")
    def _noise_alone_tells_nothing_of_itself(self) -> "DDPMConfig":
        if self.zero_terminal_snr and self.prediction == "epsilon":
            raise ValueError(
                "zero_terminal_snr needs prediction v: from noise alone, epsilon says nothing of the clip"
            )
        return self
