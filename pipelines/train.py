"""Train a text-to-video model on a dataset.

Also under torchrun. The same command goes on from the last checkpoint in its output folder.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import resolve
from pipelines.console import print_json, stdout

if TYPE_CHECKING:
    from loader.batch import Microbatch, Pack
    from loader.stream import VideoStream
    from loader.stream_config import StreamConfig
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
    from loader.share import Share
    from loader.stream import VideoStream
    from train.parallel.mesh import DATA, MODEL, Mesh, Ranks
    from train.parallel.world import join
    from train.trainer import Trainer

    with join(config.train.device) as world:
        ranks = Ranks(Mesh.of(config.train.parallel, world.size), world)
        data, peers = ranks.along(*DATA), ranks.along(*MODEL)
        share = Share(peers.group) if peers.size > 1 else None

        def open_stream(dataset: str, stream: "StreamConfig") -> VideoStream:
            return VideoStream(open_source(dataset, config.storage), stream, data.rank, data.size, share)

        stream = open_stream(config.dataset, config.stream)
        return Trainer(config.train, stream, config.out, _held_out(config, open_stream)).run()


def _held_out(
    config: "TrainRunConfig", open_stream: "Callable[[str, StreamConfig], VideoStream]"
) -> "HeldOut | None":
    from train.held_out import HeldOut

    if config.held_out is None:
        return None
    dataset, steps = config.held_out.dataset, config.held_out.steps
    once = config.stream.model_copy(update={"epochs": 1})

    def batches() -> "Iterator[Microbatch | Pack]":
        return takewhile(lambda batch: batch.step < steps, open_stream(dataset, once))

    return HeldOut(config.held_out.every_steps, batches)


def summary(result: "TrainResult") -> str:
    """One line on how the loss went."""
    fall = 1 - result.last_10_mean / result.first_10_mean
    return (
        f"{result.steps} steps: loss {result.first_10_mean:.3f} -> {result.last_10_mean:.3f} ({fall:.0%} lower),"
        f" {result.samples_per_s:.1f} samples/s; checkpoint: {result.checkpoint}"
    )
