"""Train a text-to-video model on a dataset.

Also under torchrun. The same command goes on from the last checkpoint. SIGTERM and SIGUSR1 save and end with status 75.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import resolve
from pipelines.console import print_json, stdout

if TYPE_CHECKING:
    from pipelines.train_config import TrainRunConfig
    from train.trainer import TrainResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Trains and prints how the loss went; under torchrun rank 0 prints."""
    from pipelines.train_config import TrainRunConfig
    from train.interrupt import EXIT_STOPPED

    config = resolve(TrainRunConfig, options.config, options.set)
    result = train(config)
    status = EXIT_STOPPED if result.stopped else 0
    if int(os.environ.get("RANK", "0")) > 0:
        return status
    if options.json:
        print_json(asdict(result) | {"out": str(config.out)})
    else:
        stdout().print(summary(result), markup=False, soft_wrap=True)
    return status


def train(config: "TrainRunConfig") -> "TrainResult":
    """Streams the dataset into the trainer; goes on from the last checkpoint in ``config.out``."""
    from loader.blend import open_source
    from loader.storage import open_storage
    from loader.stream import VideoStream
    from train.trainer import Trainer

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    source = open_source(config.dataset, config.storage)
    stream = VideoStream(source, config.stream, rank, world_size)
    checkpoints = open_storage(config.checkpoints, config.storage) if config.checkpoints else None
    return Trainer(config.train, stream, config.out, checkpoints).run()


def summary(result: "TrainResult") -> str:
    """One line on how the loss went."""
    fall = 1 - result.last_10_mean / result.first_10_mean
    return (
        f"{result.steps} steps: loss {result.first_10_mean:.3f} -> {result.last_10_mean:.3f} ({fall:.0%} lower),"
        f" {result.samples_per_s:.1f} samples/s; checkpoint: {result.checkpoint}"
    )
