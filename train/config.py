"""The configuration of a training run; importing it loads no torch."""

import operator
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from loader.recalibrate import RecalibrateConfig
from loader.tokens import Compression
from train.cascade.config import CascadeConfig
from train.log_config import LogConfig
from train.models.config import DiffusersConfig, DiTConfig, ModelConfig
from train.models.presets import PRESETS
from train.objectives.config import DDPMConfig, EDMConfig, FlowConfig
from train.parallel.config import ParallelConfig


class PatchTransformConfig(BaseModel, frozen=True, extra="forbid"):
    """The fixed space-time patch transform (`train.models.tokenizer`)."""

    kind: Literal["patch"] = "patch"
    frames: int = Field(2, ge=1, description="video frames per latent frame; the first frame has its own")
    height: int = Field(4, ge=1, description="pixel rows per latent row")
    width: int = Field(4, ge=1, description="pixel columns per latent column")


class DiffusersVAEConfig(BaseModel, frozen=True, extra="forbid"):
    """A published VAE of diffusers, frozen (`train.models.diffusers_vae`)."""

    kind: Literal["diffusers"] = "diffusers"
    name: str = Field(
        description="name of a pipeline or VAE on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "vae", description="of the pipeline; a local folder that is the VAE's own needs none"
    )
    frames: int = Field(4, ge=1, description="video frames per latent frame, as the VAE has them; checked")
    height: int = Field(8, ge=1, description="pixel rows per latent row; checked")
    width: int = Field(8, ge=1, description="pixel columns per latent column; checked")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of its weights and activations")
    scale: float = Field(
        1.0,
        gt=0,
        description="standard deviation that latents are brought to: 0.5 for Cosmos 1, 1 for all others",
    )
    slicing: bool = Field(False, description="one sample after the other, for less memory")
    tiling: bool = Field(False, description="one tile of the picture after the other; seams may show")


class HashedTextConfig(BaseModel, frozen=True, extra="forbid"):
    """Trainable embeddings of hashed words: needs no download and no tokenizer."""

    kind: Literal["hashed"] = "hashed"
    vocabulary: int = Field(4096, ge=1, description="rows of the embedding table words are hashed into")
    width: int = Field(128, ge=1, description="width of a word's embedding")
    max_text_tokens: int = Field(64, ge=1, description="words used of a caption")


class PublishedTextConfig(BaseModel, frozen=True, extra="forbid"):
    """Where a text encoder of transformers lies, and how much it reads."""

    name: str = Field(description="name on the Hugging Face hub, or a local folder")
    subfolder: str = Field("", description="of the encoder, where it is part of a pipeline: text_encoder")
    tokenizer_subfolder: str = Field(
        "", description="of its tokenizer, where it is part of a pipeline: tokenizer"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="type of its weights")
    max_text_tokens: int = Field(256, ge=1, description="tokens used of a caption")


class PooledTextConfig(PublishedTextConfig, frozen=True, extra="forbid"):
    """A frozen encoder, such as CLIP's, of which one vector stands for the whole caption."""

    max_text_tokens: int = Field(77, ge=1, description="tokens used of a caption")


class TransformersTextConfig(PublishedTextConfig, frozen=True, extra="forbid"):
    """A frozen text encoder loaded through transformers."""

    kind: Literal["transformers"] = "transformers"
    padding: Literal["mask", "text"] = Field(
        "mask",
        description="mask: padding of captions does not count; text: they are filled up to max_text_tokens, and padding"
        " is read and counts like words, as CogVideoX has it",
    )
    template: str = Field("{}", description="what the encoder reads, with {} for the caption")
    template_tokens: int = Field(
        0, ge=0, description="tokens of the template before the caption, which are cut off"
    )
    skipped_layers: int = Field(0, ge=0, description="last layers of the encoder that are left out")
    pooled: PooledTextConfig | None = Field(
        None,
        description="a second encoder, which HunyuanVideo needs; its vector is the first row of the context",
    )


class LoraConfig(BaseModel, frozen=True, extra="forbid"):
    """Low-rank adapters: they are trained, averaged and saved, and nothing else (`train.models.lora`)."""

    rank: int = Field(16, ge=1, description="of each adapter's two matrices")
    alpha: float = Field(16.0, gt=0, description="an adapter's output counts alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="layers that get one, by the end of their names; empty: the projections of attention"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of an adapter's inputs that are dropped; not the same after a resume",
    )
    checkpoint: str | None = Field(
        None, description="folder of a run of ours, or of one of its checkpoints, whose weights are adapted"
    )


class OptimizerConfig(BaseModel, frozen=True, extra="forbid"):
    """AdamW; weight decay acts on matrices only."""

    lr: float = Field(1e-3, gt=0, description="learning rate after the warm-up")
    betas: tuple[float, float] = Field((0.9, 0.99), description="decay of the two moment averages")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.01, ge=0, description="decay per unit of learning rate")
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the whole gradient")


class ScheduleConfig(BaseModel, frozen=True, extra="forbid"):
    """Linear warm-up, then a cosine down to ``min_lr_ratio``."""

    total_steps: int = Field(60, ge=1, description="optimizer steps of the run")
    warmup_steps: int = Field(5, ge=0, description="steps over which the learning rate rises")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="learning rate at the end, relative to lr")


class EmaConfig(BaseModel, frozen=True, extra="forbid"):
    """An average of the weights over the steps, for sampling (`train.ema`)."""

    decay: float = Field(
        0.9999,
        ge=0,
        lt=1,
        description="share of the average that stays at a step; early steps keep less of it",
    )


class Fp8Config(BaseModel, frozen=True, extra="forbid"):
    """Matrix products of blocks in FP8, through torchao (`train.parallel.fp8`); weights stay float32."""

    recipe: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = Field(
        "tensorwise",
        description="what shares a scale: a tensor (fastest), or a row (closer); rowwise_with_gw_hp: a row, and"
        " gradients of weights in bfloat16 (closest)",
    )
    fsdp_all_gather: bool = Field(
        False, description="under FSDP, gather weights in FP8: half of the bytes; tensorwise alone"
    )
    emulate: bool = Field(
        False, description="round as FP8 does and multiply in float32: on any device, slowly, to rehearse"
    )

    @model_validator(mode="after")
    def _one_scale_is_gathered(self) -> "Fp8Config":
        if self.fsdp_all_gather and self.recipe != "tensorwise":
            raise ValueError(f"fsdp_all_gather needs recipe tensorwise, and it is {self.recipe}")
        return self


class CheckpointConfig(BaseModel, frozen=True, extra="forbid"):
    """When checkpoints are written and how many stay; the last step always writes one."""

    every_steps: int = Field(500, ge=1, description="steps between checkpoints")
    keep_last: int = Field(3, ge=1, description="newest checkpoints that are kept")
    keep_every: int | None = Field(
        None, ge=1, description="checkpoints of these steps stay for good; a multiple of every_steps"
    )
    background: bool = Field(True, description="train on while a checkpoint is written")

    @model_validator(mode="after")
    def _kept_ones_are_written(self) -> "CheckpointConfig":
        if self.keep_every and self.keep_every % self.every_steps:
            raise ValueError(
                f"keep_every ({self.keep_every}) must be a multiple of every_steps ({self.every_steps})"
            )
        return self


class TrainConfig(BaseModel, frozen=True, extra="forbid"):
    """One training run; the data come as a stream beside it."""

    model: ModelConfig | DiffusersConfig = Field(
        DiTConfig(),
        discriminator="kind",
        description="an architecture, the name of a preset, or a published model",
    )
    lora: LoraConfig | None = Field(None, description="train adapters of the model; null trains all of it")
    tokenizer: PatchTransformConfig | DiffusersVAEConfig = Field(PatchTransformConfig(), discriminator="kind")
    text: HashedTextConfig | TransformersTextConfig = Field(HashedTextConfig(), discriminator="kind")
    objective: FlowConfig | EDMConfig | DDPMConfig = Field(FlowConfig(), discriminator="name")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig | None = Field(None, description="keep an average of the weights; null keeps none")
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    parallel: ParallelConfig = ParallelConfig()
    cascade: CascadeConfig = CascadeConfig()
    fp8: Fp8Config | None = Field(
        None,
        description="matrix products of blocks in FP8; null has them in dtype. A run may go on with or without",
    )
    recalibrate: RecalibrateConfig | None = Field(
        None, description="when measured times replace the cost that steps are planned with; null is never"
    )
    seed: int = Field(0, description="decides initial weights, noise, timesteps and dropped captions")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of activations, not of weights")
    denominator: Literal["step", "epoch", "step_tokens"] = Field(
        "step",
        description="what a sample's gradient is divided by: the samples of its step, or the mean of all steps, by"
        " which samples of small steps count no more than others; step_tokens: a sample counts by its video tokens,"
        " divided by those of its step",
    )
    lost_after_s: float = Field(
        60.0, gt=0, description="a rank without a sign of life for so long counts as lost, and the run ends"
    )
    max_nonfinite_steps: int = Field(5, ge=1, description="stop after so many in a row")

    @field_validator("objective", mode="before")
    @classmethod
    def _flow_where_no_name_is_given(cls, value: Any) -> Any:
        return {"name": "flow", **value} if isinstance(value, dict) else value

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _patch_where_no_kind_is_given(cls, value: Any) -> Any:
        return {"kind": "patch", **value} if isinstance(value, dict) else value

    @field_validator("model", mode="before")
    @classmethod
    def _preset_or_kind(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in PRESETS:
                raise ValueError(f"there are the presets {', '.join(PRESETS)}")
            return PRESETS[value]
        return {"kind": "dit", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _trained_weights_are_float32(self) -> "TrainConfig":
        published = isinstance(self.model, DiffusersConfig)
        if isinstance(self.model, DiffusersConfig) and self.model.dtype != "float32":
            if self.lora is None:
                raise ValueError(
                    f"model.dtype {self.model.dtype} needs lora: weights that are trained are float32"
                )
            if self.dtype != self.model.dtype:
                raise ValueError(f"model.dtype {self.model.dtype} needs dtype {self.model.dtype}")
        if self.lora and published == (self.lora.checkpoint is not None):
            which = "is for models of ours" if published else "must name the weights that are adapted"
            raise ValueError(f"lora.checkpoint {which}")
        if self.lora and self.lora.dropout and self.parallel.activation_checkpointing != "none":
            raise ValueError(
                "lora.dropout would not drop the same where parallel.activation_checkpointing repeats it"
            )
        if self.lora and self.parallel.tp > 1:
            raise ValueError(
                "parallel.tp cannot divide layers with adapters; leave it at 1, and divide with dp_shard"
            )
        return self

    @model_validator(mode="after")
    def _cascades_are_samples_own(self) -> "TrainConfig":
        if self.parallel.schedule == "static":
            return self
        if self.recalibrate:
            raise ValueError(
                "recalibrate times a microbatch on one rank, and with parallel.schedule cascade it has several: leave"
                " recalibrate out"
            )
        if self.cascade.gradient_sum == "representatives" and self.parallel.dp_shard != 1:
            raise ValueError(
                "cascade.gradient_sum representatives leaves the sum on every rank, and parallel.shard optimizer wants"
                " pieces of it: take all, or set parallel.dp_shard to 1"
            )
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout would drop by rank, and parallel.schedule cascade decides which rank: set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _fp8_is_for_bfloat16(self) -> "TrainConfig":
        if self.fp8 and self.dtype != "bfloat16":
            raise ValueError("fp8 needs dtype bfloat16: that is what its products give")
        if self.fp8 and self.fp8.emulate and self.parallel.compile:
            raise ValueError("fp8.emulate cannot be compiled: set parallel.compile to false")
        return self

    @model_validator(mode="after")
    def _recorded_steps_are_made(self) -> "TrainConfig":
        windows = {"profile": self.log.profile, "memory_snapshot": self.log.memory_snapshot}
        for name, window in windows.items():
            if window and window.last_step > self.schedule.total_steps:
                raise ValueError(
                    f"log.{name} ends with step {window.last_step}, and schedule.total_steps is"
                    f" {self.schedule.total_steps}; record earlier or fewer steps"
                )
        return self

    @property
    def compression(self) -> Compression:
        """Pixels that become one token: the tokenizer's patch times the model's."""
        latent = (self.tokenizer.frames, self.tokenizer.height, self.tokenizer.width)
        frames, height, width = map(operator.mul, latent, self.model.patch)
        return Compression(frames=frames, height=height, width=width, causal=True)
