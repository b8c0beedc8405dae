"""Whole configuration of ``reelweave train``; imports no torch."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.settings import Settings
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.configuration.bucket_shapes import check_bucket_shapes
from reelweave.train.config.run import TrainConfig
from reelweave.train.latents.config import LatentsConfig
from reelweave.train.loop.validation_config import ValidationConfig


class HeldOutConfig(Settings):
    """Held-out clips, whose loss is measured at intervals, at fixed quantiles of the diffusion time."""

    dataset: str | None = Field(
        default=None,
        description="folder or s3:// prefix of the held-out dataset, streamed like the other; null: the other part of"
        " stream.split",
    )
    every_steps: int = Field(500, ge=1, description="optimizer steps between measurements")
    before_first_step: bool = Field(
        False, description="measure before the first step, too: the loss of the model as the run begins"
    )
    steps: int = Field(
        4,
        ge=1,
        description="most steps of its first epoch to measure; ranks x stream.microbatches decide what a step holds",
    )


class TrainRunConfig(Settings):
    """Data, streaming and training of a run."""

    dataset: str = Field(description="folder or s3:// prefix of a finished dataset")
    out: Path = Field(description="folder for metrics, TensorBoard events and, by default, checkpoints")
    checkpoints: str | None = Field(None, description="folder or s3:// prefix for checkpoints; null: in out")
    stream: StreamConfig
    train: TrainConfig = TrainConfig()
    held_out: HeldOutConfig | None = Field(
        None, description="held-out clips whose loss is measured; null: none"
    )
    validation: ValidationConfig | None = Field(
        None, description="videos sampled from the weights during training; null: none"
    )
    latents: LatentsConfig = Field(
        LatentsConfig(),
        description="settings of `reelweave latents` (docs/latents.md), which training ignores",
    )
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _held_out_clips_are_others(self) -> Self:
        if self.held_out and not self.held_out.dataset and not self.stream.split:
            raise ValueError(
                "held_out needs a dataset of other clips, or stream.split, whose val part is then held out"
            )
        return self

    @model_validator(mode="after")
    def _loader_counts_the_tokens_the_model_sees(self) -> Self:
        counted, compression = self.stream.buckets, self.train.compression
        if counted.compression != compression:
            raise ValueError(
                f"stream.buckets.compression must be {compression.model_dump()}: what train.tokenizer and"
                " train.model.patch make of a video"
            )
        text_tokens = self.train.text.max_text_tokens + 1
        if counted.max_text_tokens < text_tokens:
            raise ValueError(
                f"stream.buckets.max_text_tokens must be at least {text_tokens}:"
                " train.text.max_text_tokens and a start token"
            )
        tokenizer, patch = self.train.tokenizer, self.train.model.patch
        check_bucket_shapes(self.stream, (tokenizer.frames, tokenizer.height, tokenizer.width), patch)
        return self

    @model_validator(mode="after")
    def _published_models_take_no_packs(self) -> Self:
        if self.stream.regime == "pack" and self.train.model.kind == "diffusers":
            raise ValueError("stream.regime pack is for models of ours; a model of diffusers takes no packs")
        return self

    @model_validator(mode="after")
    def _steps_can_be_shared(self) -> Self:
        if self.train.parallel.work_stealing is None:
            return self
        for key, needed in (("regime", "step"), ("policy", "balanced")):
            if (value := getattr(self.stream, key)) != needed:
                raise ValueError(f"train.parallel.work_stealing needs stream.{key}={needed}; it is {value}")
        if self.stream.microbatches < 2:
            raise ValueError(
                "train.parallel.work_stealing leaves every rank one microbatch, so with stream.microbatches=1 there is"
                " nothing to share: take 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _one_caption_dropout(self) -> Self:
        if self.stream.caption_dropout and self.train.objective.caption_dropout:
            raise ValueError(
                f"stream.caption_dropout={self.stream.caption_dropout:g} drops captions before"
                f" train.objective.caption_dropout={self.train.objective.caption_dropout:g} drops some of the rest: set"
                " one of them to 0"
            )
        return self

    @model_validator(mode="after")
    def _one_denominator(self) -> Self:
        if self.stream.denominator == "step" and self.train.denominator == "epoch":
            raise ValueError(
                "stream.denominator=step is for loops of your own; in a run set train.denominator=step, or leave both"
            )
        return self

    @model_validator(mode="after")
    def _pixels_are_trained_on(self) -> Self:
        if not self.stream.decode:
            raise ValueError("stream.decode must be true: training needs pixels")
        return self
