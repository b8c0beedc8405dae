"""Configurations of the components of a run: what each of them reads of `TrainConfig`, and no more."""

from typing import Literal, NamedTuple

from reelweave.loader.buckets.tokens import Compression
from reelweave.train.config.cascade import CascadeConfig
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.config.optimizer import EmaConfig, Fp8Config, OptimizerConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.text import HashedTextConfig, TransformersTextConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig, PatchTransformConfig

Objective = FlowConfig | EDMConfig | DDPMConfig
TextConfig = HashedTextConfig | TransformersTextConfig
TokenizerConfig = PatchTransformConfig | DiffusersVAEConfig
Dtype = Literal["float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
Denominator = Literal["step", "epoch", "step_tokens"]


class ModulesConfig(NamedTuple):
    """Modules of a run, and the seed of their initial weights: `reelweave.train.models.bundle.Bundle`."""

    model: ModelConfig | DiffusersConfig
    lora: LoraConfig | None
    tokenizer: TokenizerConfig
    text: TextConfig
    objective: Objective
    first_frames: FirstFramesConfig | None
    seed: int


class EncodersConfig(NamedTuple):
    """Encoders of videos and captions, whose outputs may be stored: `reelweave.train.latents`."""

    tokenizer: TokenizerConfig
    text: TextConfig
    dtype: Dtype
    device: Device


class LossConfig(NamedTuple):
    """Values that determine a sample's loss beside weights: `reelweave.train.step.losses.losses`."""

    objective: Objective
    first_frames: FirstFramesConfig | None
    seed: int
    dtype: Dtype


class LayoutConfig(NamedTuple):
    """Layout of a model on ranks, and its optimizer: `reelweave.train.parallel.layouts`."""

    parallel: ParallelConfig
    optimizer: OptimizerConfig
    lora: LoraConfig | None
    fp8: Fp8Config | None
    dtype: Dtype
    losses: LossConfig


class StepConfig(NamedTuple):
    """Training step apart from its data: what is laid out on ranks, measured and rehearsed."""

    modules: ModulesConfig
    layout: LayoutConfig
    ema: EmaConfig | None
    denominator: Denominator

    def with_parallel(self, parallel: ParallelConfig) -> "StepConfig":
        """Return the same step in another layout."""
        return self._replace(layout=self.layout._replace(parallel=parallel))


class CascadesConfig(NamedTuple):
    """Planning and execution of a step as cascades: `reelweave.train.cascade.training.cascades.Cascades`."""

    cascade: CascadeConfig
    parallel: ParallelConfig
    compression: Compression
    text: TextConfig
    losses: LossConfig
    denominator: Denominator
