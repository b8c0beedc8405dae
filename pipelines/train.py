"""Train a text-to-video model on a dataset.

Also under torchrun. The same command goes on from the last checkpoint in its output folder.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, Field, model_validator

from loader.buckets import BucketConfig
from loader.dataset import Dataset
from loader.storage import StorageConfig, open_storage
from loader.tokens import Compression
from pipelines.config import resolve
from pipelines.console import print_json, stdout
from train.config import TrainConfig

if TYPE_CHECKING:
    from train.trainer import TrainResult


class StreamSettings(BaseModel, frozen=True, extra="forbid"):
    """How the dataset is streamed."""

    buckets: BucketConfig
    seed: int = Field(0, ge=0, description="decides the order of samples and the frames taken of them")
    workers: int = Field(2, ge=1, description="decoding threads")
    prefetch: int = Field(4, ge=1, description="microbatches decoded ahead")


class TrainRunConfig(BaseModel, frozen=True, extra="forbid"):
    """The whole configuration of ``reelweave train``."""

    dataset: str = Field(description="folder or s3:// prefix of a finished dataset")
    out: Path = Field(description="folder for checkpoints, metrics and TensorBoard events")
    stream: StreamSettings
    train: TrainConfig = TrainConfig()
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _loader_counts_the_tokens_the_model_sees(self) -> Self:
        tokenizer, patch = self.train.tokenizer, self.train.model.patch
        seen = Compression(
            frames=tokenizer.frames * patch[0],
            height=tokenizer.height * patch[1],
            width=tokenizer.width * patch[2],
            causal=True,
        )
        counted = self.stream.buckets
        if counted.compression != seen:
            raise ValueError(
                f"stream.buckets.compression must be {seen.model_dump()}: what train.tokenizer and"
                " train.model.patch make of it"
            )
        if counted.max_text_tokens < self.train.text.max_text_tokens:
            raise ValueError(
                f"stream.buckets.max_text_tokens must be at least train.text.max_text_tokens"
                f" ({self.train.text.max_text_tokens})"
            )
        return self


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Trains and prints how the loss went."""
    config = resolve(TrainRunConfig, options.config, options.set)
    result = train(config)
    if options.json:
        print_json(described(result))
    else:
        stdout().print(summary_line(result), markup=False, soft_wrap=True)
    return 0
