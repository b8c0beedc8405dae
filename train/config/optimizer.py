"""Configuration of the optimizer, its learning rate, the EMA of weights, and FP8 matrix products."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Settings

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of an average."""


class OptimizerConfig(Settings):
    """AdamW; weight decay acts on the weights of linear, convolution and embedding layers.

    Biases, gains of norms, tables of scales and shifts, and learned positions are not decayed.
    """

    lr: float = Field(1e-3, gt=0, description="learning rate after the warm-up")
    betas: tuple[Decay, Decay] = Field((0.9, 0.99), description="decay rates of the two moment averages")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.01, ge=0, description="decay per unit of learning rate")
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the whole gradient")
    moments: Literal["float32", "bfloat16", "8bit"] = Field(
        "float32",
        description="dtype of the stored moment averages: 8 bytes a weight, 4, or 2 (8bit: vectors, and tensors with"
        " rows of fewer than 64 values, stay float32)",
    )


class ScheduleConfig(Settings):
    """Linear warm-up, then a curve down to ``min_lr_ratio``."""

    READ_WITH: ClassVar = {"min_lr_ratio": ("kind", ("cosine", "linear", "wsd", "inverse_sqrt"))}

    kind: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = Field(
        "cosine",
        description="curve behind the warm-up; wsd: constant, then linear over the last decay_steps; inverse_sqrt: 1 /"
        " sqrt(step), from the warm-up on",
    )
    total_steps: int = Field(60, ge=1, description="optimizer steps of the run")
    warmup_steps: int = Field(5, ge=0, description="steps over which the learning rate rises")
    decay_steps: int | None = Field(
        None,
        ge=1,
        description="wsd: steps over which the learning rate falls; null: a fifth of total_steps; at most those behind"
        " the warm-up",
    )
    min_lr_ratio: float = Field(
        0.1, ge=0, le=1, description="least learning rate, relative to lr; constant ignores it"
    )

    @model_validator(mode="after")
    def _only_wsd_decays(self) -> "ScheduleConfig":
        if self.decay_steps is not None and self.kind != "wsd":
            raise ValueError(f"decay_steps is of kind wsd, not of {self.kind}")
        return self


class EmaConfig(Settings):
    """Exponential moving average of the weights, for sampling (`reelweave.train.step.ema`)."""

    decay: float = Field(
        0.9999,
        ge=0,
        lt=1,
        description="share of the average that stays at each step; smaller in early steps",
    )


class Fp8Config(Settings):
    """Matrix products of blocks in FP8, through torchao (`reelweave.train.parallel.fp8`); weights stay float32."""

    recipe: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = Field(
        "tensorwise",
        description="scaling granularity: tensorwise (fastest), rowwise (more accurate), or rowwise_with_gw_hp (rows,"
        " with gradients of weights in bfloat16; most accurate)",
    )
    fsdp_all_gather: bool = Field(
        False, description="under FSDP, gather weights in FP8, which halves the bytes; tensorwise only"
    )
    emulate: bool = Field(
        False, description="round to FP8 and multiply in float32: slow, for trials on any device"
    )

    @model_validator(mode="after")
    def _one_scale_is_gathered(self) -> "Fp8Config":
        if self.fsdp_all_gather and self.recipe != "tensorwise":
            raise ValueError(f"fsdp_all_gather needs recipe tensorwise, and it is {self.recipe}")
        return self
