"""Configurations of training objectives; importing them loads no torch."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings


class ObjectiveConfig(Settings):
    """Common keys of all objectives."""

    caption_dropout: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of samples trained without a caption, for classifier-free guidance",
    )


class ConstantShift(Settings):
    """The same timestep shift for every sample: 1 is none; SD3 uses 3, Wan2.1 3 at 480p and 5 at 720p."""

    kind: Literal["constant"] = "constant"
    factor: float = Field(1.0, gt=0, description="shift s; above 1 there is more noise")


class RootShift(Settings):
    """Timestep shift s = sqrt(tokens / base_tokens), which keeps uncertainty equal across lengths (SD3, eq. 23)."""

    kind: Literal["root"] = "root"
    base_tokens: int = Field(1024, ge=1, description="video tokens of a sample with shift 1")


class ExponentialShift(Settings):
    """Timestep shift s = exp(mu); mu is linear in the number of tokens, extrapolated at both ends (FLUX.1)."""

    kind: Literal["exponential"] = "exponential"
    base_tokens: int = Field(256, ge=1, description="video tokens at which mu is base_mu")
    max_tokens: int = Field(4096, ge=1, description="video tokens at which mu is max_mu")
    base_mu: float = Field(0.5, description="ln s at base_tokens")
    max_mu: float = Field(1.15, description="ln s at max_tokens")

    @model_validator(mode="after")
    def _two_lengths(self) -> "ExponentialShift":
        if self.base_tokens >= self.max_tokens:
            raise ValueError(f"max_tokens ({self.max_tokens}) must be above base_tokens ({self.base_tokens})")
        return self


Shift = Annotated[ConstantShift | RootShift | ExponentialShift, Field(discriminator="kind")]


class FlowConfig(ObjectiveConfig):
    """Rectified flow (`reelweave.train.objectives.flow`)."""

    READ_WITH: ClassVar = {
        "time_mean": ("time", ("logit_normal",)),
        "time_std": ("time", ("logit_normal",)),
        "mode_scale": ("time", ("mode",)),
    }

    name: Literal["flow"] = "flow"
    time: Literal["logit_normal", "uniform", "mode"] = Field(
        "logit_normal", description="distribution of times t between data (0) and noise (1)"
    )
    time_mean: float = Field(
        0.0, description="logit_normal: mean of logit(t); above 0 trains more on noisy inputs"
    )
    time_std: float = Field(1.0, gt=0, description="logit_normal: standard deviation of logit(t)")
    mode_scale: float = Field(
        1.29,
        ge=-1,
        le=2 / (math.pi - 2),
        description="mode: preference for times in the middle",
    )
    shift: Shift = Field(
        ConstantShift(),
        description="timestep shift: t becomes s t / (1 + (s - 1) t), in training and in sampling",
    )
    weighting: Literal["none", "cosmap"] = Field(
        "none", description="weight of a squared error as a function of t"
    )


class EDMConfig(ObjectiveConfig):
    """The preconditioned denoiser of Karras et al. 2022 (`reelweave.train.objectives.edm`)."""

    name: Literal["edm"] = "edm"
    p_mean: float = Field(-1.2, description="mean of ln(sigma)")
    p_std: float = Field(1.2, gt=0, description="standard deviation of ln(sigma)")
    sigma_data: float = Field(0.5, gt=0, description="standard deviation of the latents")
    sigma_min: float = Field(
        0.002, gt=0, description="sampling: lowest noise level that the model is evaluated at"
    )
    sigma_max: float = Field(80.0, gt=0, description="sampling: noise level of the first step")
    rho: float = Field(
        7.0, gt=0, description="sampling: exponent of the spacing; above 1, steps are shorter at lower noise"
    )

    @model_validator(mode="after")
    def _a_range(self) -> "EDMConfig":
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_max ({self.sigma_max}) must be above sigma_min ({self.sigma_min})")
        return self


class DDPMConfig(ObjectiveConfig):
    """Discrete-time diffusion (`reelweave.train.objectives.ddpm`)."""

    READ_WITH: ClassVar = {
        "beta_start": ("schedule", ("linear", "scaled_linear")),
        "beta_end": ("schedule", ("linear", "scaled_linear")),
    }

    name: Literal["ddpm"] = "ddpm"
    prediction: Literal["epsilon", "v"] = Field("epsilon", description="prediction target of the model")
    schedule: Literal["linear", "scaled_linear", "cosine"] = Field(
        "linear", description="noise schedule; scaled_linear: the square root of beta is linear"
    )
    timesteps: int = Field(1000, ge=2, description="number of noise levels")
    beta_start: float = Field(1e-4, gt=0, lt=1, description="beta of the first level; not for cosine")
    beta_end: float = Field(0.02, gt=0, lt=1, description="beta of the last level; not for cosine")
    zero_terminal_snr: bool = Field(
        False, description="rescale the schedule to pure noise at the last level; needs prediction v"
    )
    snr_shift: float = Field(
        1.0, gt=0, description="divisor of the signal-to-noise ratio at every level; CogVideoX 2B uses 3"
    )
    min_snr_gamma: float | None = Field(
        None,
        gt=0,
        description="Min-SNR weighting: weigh errors of the clean latent by min(SNR, gamma), often 5; null: equal"
        " weights of predictions",
    )

    @model_validator(mode="after")
    def _noise_alone_tells_nothing_of_itself(self) -> "DDPMConfig":
        if self.zero_terminal_snr and self.prediction == "epsilon":
            raise ValueError(
                "zero_terminal_snr needs prediction v: from noise alone, epsilon says nothing of the clip"
            )
        return self
