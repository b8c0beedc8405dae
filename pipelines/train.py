"""Train a text-to-video model on a dataset.

Also under torchrun. The same command goes on from the last checkpoint in its output folder.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import resolve
from pipelines.console import print_json, stdout

if TYPE_CHECKING:
    from loader.batch import Microbatch, Pack
    from pipelines.train_config import TrainRunConfig
    from train.held_out import HeldOut
    from train.trainer import TrainResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Trains and prints how the loss went; under torchrun rank 0 prints."""
    from pipelines.train_config import TrainRunConfig

    config = resolve(TrainRunConfig, options.config, options.set)
    result = train(config)
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    if options.json:
        print_json(asdict(result) | {"checkpoint": str(result.checkpoint), "out": str(config.out)})
    else:
        stdout().print(summary(result), markup=False, soft_wrap=True)
    return 0


def train(config: "TrainRunConfig") -> "TrainResult":
    """Streams the dataset into the trainer; goes on from the last checkpoint in ``config.out``."""
    from loader.blend import open_source
    from loader.stream import VideoStream
    from train.trainer import Trainer

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    source = open_source(config.dataset, config.storage)
    stream = VideoStream(source, config.stream, rank, world_size)
    return Trainer(config.train, stream, config.out, _held_out(config, rank, world_size)).run()


def _held_out(config: "TrainRunConfig", rank: int, world_size: int) -> "HeldOut | None":
    from loader.blend import open_source
    from loader.stream import VideoStream
    from train.held_out import HeldOut

    if config.held_out is None:
        return None
    source, steps = open_source(config.held_out.dataset, config.storage), config.held_out.steps
    once = config.stream.model_copy(update={"epochs": 1})

    def batches() -> "Iterator[Microbatch | Pack]":
        return takewhile(lambda batch: batch.step < steps, VideoStream(source, once, rank, world_size))

    return HeldOut(config.held_out.every_steps, batches)


def summary(result: "TrainResult") -> str:
    """One line on how the loss went."""
    fall = 1 - result.last_10_mean / result.first_10_mean
    return (
        f"{result.steps} steps: loss {result.first_10_mean:.3f} -> {result.last_10_mean:.3f} ({fall:.0%} lower),"
        f" {result.samples_per_s:.1f} samples/s; checkpoint: {result.checkpoint}"
    )
