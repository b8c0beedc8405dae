"""Configuration of a training run."""

import operator
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from reelweave.loader.buckets.recalibrate import RecalibrateConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.settings import Except, Settings
from reelweave.train.config.cascade import CascadeConfig
from reelweave.train.config.checkpoint import CheckpointConfig, StartFromConfig
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.log import LogConfig
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import PRESETS, DiffusersConfig, DiTConfig, ModelConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.config.optimizer import EmaConfig, Fp8Config, OptimizerConfig, ScheduleConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.parts import (
    CascadesConfig,
    EncodersConfig,
    LayoutConfig,
    LossConfig,
    ModulesConfig,
    StepConfig,
)
from reelweave.train.config.text import HashedTextConfig, TransformersTextConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig, PatchTransformConfig


class TrainConfig(Settings):
    """Configuration of one training run; the data stream is configured beside it."""

    READ_WITH: ClassVar = {
        "cascade": ("parallel.schedule", ("cascade",)),
        "fp8.fsdp_all_gather": ("parallel.dp_shard", Except(1)),
    }

    model: ModelConfig | DiffusersConfig = Field(
        DiTConfig(),
        discriminator="kind",
        description="architecture, name of a preset, or published model",
    )
    lora: LoraConfig | None = Field(None, description="train LoRA adapters only; null: train all weights")
    start_from: StartFromConfig | None = Field(
        None,
        description="begin with the weights of another run (docs/next_stage.md); null: with those of model",
    )
    tokenizer: PatchTransformConfig | DiffusersVAEConfig = Field(PatchTransformConfig(), discriminator="kind")
    text: HashedTextConfig | TransformersTextConfig = Field(HashedTextConfig(), discriminator="kind")
    objective: FlowConfig | EDMConfig | DDPMConfig = Field(FlowConfig(), discriminator="name")
    first_frames: FirstFramesConfig | None = Field(
        None, description="image to video: give the model the first frames of each clip; null: text to video"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig | None = Field(
        None, description="keep an exponential moving average of the weights; null: none"
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    parallel: ParallelConfig = ParallelConfig()
    cascade: CascadeConfig = CascadeConfig()
    fp8: Fp8Config | None = Field(
        None,
        description="matrix products of blocks in FP8; null: in dtype. A resumed run may change it",
    )
    recalibrate: RecalibrateConfig | None = Field(
        None, description="refit the cost model of step plans to measured times during training; null: never"
    )
    seed: int = Field(0, description="seed of initial weights, noise, timesteps and caption dropout")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of activations; weights stay float32"
    )
    denominator: Literal["step", "epoch", "step_tokens"] = Field(
        "epoch",
        description="divisor of a sample's gradient. epoch: mean samples of all steps, so that all samples count alike."
        " step: samples of its step, so that samples of small steps weigh more. step_tokens: video tokens of its step,"
        " with samples weighted by theirs",
    )
    lost_after_s: float = Field(
        60.0, gt=0, description="heartbeat timeout: a rank silent for this long is lost, and the run ends"
    )
    collective_timeout_s: float = Field(
        1800.0,
        gt=0,
        description="time after which a collective that does not end is an error: longer than anything that one rank"
        " does while others wait, such as a first compilation. Lost ranks end the run after lost_after_s",
    )
    max_nonfinite_steps: int = Field(
        5, ge=1, description="stop after this many consecutive steps with a non-finite gradient"
    )

    @property
    def modules(self) -> ModulesConfig:
        """Configuration of the modules."""
        return ModulesConfig(
            self.model, self.lora, self.tokenizer, self.text, self.objective, self.first_frames, self.seed
        )

    @property
    def encoders(self) -> EncodersConfig:
        """Configuration of the encoders."""
        return EncodersConfig(self.tokenizer, self.text, self.dtype, self.device)

    @property
    def losses(self) -> LossConfig:
        """Configuration of the loss of a sample."""
        return LossConfig(self.objective, self.first_frames, self.seed, self.dtype)

    @property
    def layout(self) -> LayoutConfig:
        """Configuration of the layout on ranks."""
        return LayoutConfig(self.parallel, self.optimizer, self.lora, self.fp8, self.dtype, self.losses)

    @property
    def step(self) -> StepConfig:
        """Configuration of a step apart from its data."""
        return StepConfig(self.modules, self.layout, self.ema, self.denominator)

    @property
    def cascades(self) -> CascadesConfig:
        """Configuration of cascades."""
        return CascadesConfig(
            self.cascade, self.parallel, self.compression, self.text, self.losses, self.denominator
        )

    @field_validator("start_from", mode="before", json_schema_input_type=StartFromConfig | str | None)
    @classmethod
    def _source_alone(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

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
        if self.recalibrate and self.parallel.pp > 1:
            raise ValueError(
                "recalibrate times one microbatch after the other, and with parallel.pp they overlap: leave one out"
            )
        if self.lora and self.lora.base_dtype and self.fp8:
            raise ValueError(
                "lora.base_dtype holds weights in few bits, and fp8 multiplies by weights that it rounds itself: leave"
                " one out"
            )
        if self.lora and self.parallel.tp > 1:
            raise ValueError(
                "parallel.tp cannot divide layers with adapters; leave it at 1, and divide with dp_shard"
            )
        return self

    @model_validator(mode="after")
    def _adapters_begin_once(self) -> "TrainConfig":
        if self.lora is None or self.lora.start_from is None:
            return self
        if self.start_from is not None:
            raise ValueError("start_from and lora.start_from both name adapters to begin with: leave one out")
        if not isinstance(self.model, DiffusersConfig):
            raise ValueError("lora.start_from is for published models: a run of ours begins with start_from")
        return self

    @model_validator(mode="after")
    def _cascades_are_samples_own(self) -> "TrainConfig":
        if self.parallel.schedule == "static":
            return self
        # Measurements that a plan needs, or that count on one rank for each microbatch.
        if self.recalibrate:
            raise ValueError(
                "recalibrate times a microbatch on one rank, and with parallel.schedule cascade it has several: leave"
                " recalibrate out"
            )
        if self.cascade.memory_gib and self.cascade.costs is None:
            raise ValueError(
                "cascade.memory_gib needs cascade.costs: without them plans count operations, and know no memory"
            )
        # Sums and moves that do not fit weights which ranks share.
        if self.cascade.gradient_sum == "representatives" and self.parallel.dp_shard != 1:
            raise ValueError(
                "cascade.gradient_sum representatives leaves the sum on every rank, and with parallel.dp_shard a rank"
                " wants a shard of it: take all, or set parallel.dp_shard to 1"
            )
        correction, sharded = self.cascade.correction, self.parallel.shard == "weights"
        if correction and correction.reorders and sharded and self.parallel.dp_shard != 1:
            raise ValueError(
                "cascade.correction.reorders would tear apart the ranks that share weights by parallel.dp_shard: set it"
                " to 0"
            )
        # What would make a result depend on the rank that computed it.
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout would drop by rank, and parallel.schedule cascade decides which rank: set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _only_frozen_encoders_are_placed(self) -> "TrainConfig":
        is_placed = self.parallel.text_encoder in ("shard", "offload")
        if is_placed and isinstance(self.text, HashedTextConfig):
            raise ValueError(
                f"parallel.text_encoder {self.parallel.text_encoder} is for a published text encoder; hashed words have"
                " a small table that is trained: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _scales_belong_to_whole_rows(self) -> "TrainConfig":
        if self.optimizer.moments == "8bit" and self.parallel.tp > 1:
            raise ValueError(
                "optimizer.moments 8bit has scales along rows, which parallel.tp divides: take bfloat16, or divide with"
                " dp_shard"
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
        """Pixels per token along each axis: the tokenizer's patch times the model's."""
        latent = (self.tokenizer.frames, self.tokenizer.height, self.tokenizer.width)
        frames, height, width = map(operator.mul, latent, self.model.patch)
        return Compression(frames=frames, height=height, width=width, causal=True)
