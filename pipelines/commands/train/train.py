"""Train a text-to-video model on a dataset, in one process or under torchrun.

The same command resumes from the last checkpoint. SIGTERM and SIGUSR1 save a checkpoint and end with status 75.
OUT/train.yaml keeps the resolved configuration. --dry-run prints what the run needs.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from reelweave.loader.errors import UsageError
from reelweave.pipelines.commands.train import train_forecast
from reelweave.pipelines.configuration.kept import kept_yaml
from reelweave.pipelines.terminal.arguments import add_config
from reelweave.pipelines.terminal.console import print_json, stderr, stdout
from reelweave.pipelines.terminal.files import write_whole

if TYPE_CHECKING:
    from reelweave.loader.batch import Microbatch, Pack
    from reelweave.loader.blend.source import SampleSource
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.loader.storage import Storage
    from reelweave.loader.stream.video_stream import VideoStream
    from reelweave.pipelines.configuration.train_config import TrainRunConfig
    from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig
    from reelweave.train.distributed.world import World
    from reelweave.train.loop.evaluation import HeldOutEvaluation
    from reelweave.train.loop.loop import TrainResult
    from reelweave.train.loop.validation import Validation
    from reelweave.train.models.encoders.stored import StoredEncoders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave train`."""
    add_config(parser, "YAML configuration, which `reelweave config init` prints", required=True)
    train_forecast.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Train and print the change of the loss; under torchrun rank 0 prints."""
    from reelweave.pipelines.configuration.model_rate import resolve_run

    train_forecast.check_options(options)
    config = resolve_run(options.config, options.set)
    if options.dry_run:
        return train_forecast.run(config, options)
    return finish(train(config), config.out, options.json)


def finish(result: "TrainResult", out: Path, as_json: bool) -> int:
    """Print a run's result on rank 0; return the exit status."""
    from reelweave.train.loop.interrupt import EXIT_STOPPED

    status = EXIT_STOPPED if result.stopped else 0
    if int(os.environ.get("RANK", "0")) > 0:
        return status
    if as_json:
        print_json(asdict(result) | {"out": str(out)})
    else:
        stdout().print(summary(result), markup=False, soft_wrap=True)
    return status


def train(config: "TrainRunConfig") -> "TrainResult":
    """Stream the dataset into the trainer, from the last checkpoint in ``config.out``."""
    from reelweave.loader.blend import open_source
    from reelweave.loader.read.share import Share
    from reelweave.loader.stream.video_stream import VideoStream
    from reelweave.pipelines.configuration.model_rate import other_rates
    from reelweave.train.distributed.run_lease import alone
    from reelweave.train.loop.processes import enter
    from reelweave.train.loop.trainer import Trainer
    from reelweave.train.parallel.mesh import DATA, MODEL

    with enter(config.train) as processes:
        ranks = processes.ranks
        data, peers = ranks.along(*DATA), ranks.along(*MODEL)
        share = Share(peers.group) if peers.size > 1 else None

        def open_stream(dataset: str, stream: "StreamConfig") -> VideoStream:
            # The trainer applies train.denominator itself, behind the clipping of gradients.
            by_step = stream.model_copy(update={"denominator": "step"})
            return VideoStream(open_source(dataset, config.storage), by_step, data.rank, data.size, share)

        stream = open_stream(config.dataset, config.stream)
        if ranks.world.rank == 0:
            for sentence in [
                *other_rates(config, stream.source.plan_index),
                *_too_few_epochs(config, stream),
            ]:
                stderr().print(sentence, markup=False, soft_wrap=True)
        storages = run_storages(config)
        held_out = _held_out(config, open_stream)
        stored = _find_stored(config, stream.source, ranks.world)
        with alone(ranks.world, storages, "reelweave train") as held:
            checkpoints = held[-1] if config.checkpoints else None
            trainer = Trainer(
                config.train,
                stream,
                config.out,
                held_out,
                checkpoints,
                stored,
                _validation(config),
                config.storage,
            )
            return trainer.run_on(processes, partial(keep_config, config, ranks.world.rank, "train"))


def _too_few_epochs(config: "TrainRunConfig", stream: "VideoStream") -> "Iterator[str]":
    """Yield a sentence if the epochs of a stream hold fewer steps than the run, as far as is known at its start."""
    total_steps, epochs = config.train.schedule.total_steps, config.stream.epochs
    if epochs is None or config.stream.curriculum is not None:
        return
    if (steps := epochs * stream.steps_per_epoch) < total_steps:
        yield (
            f"stream.epochs={epochs} holds about {steps} steps, and train.schedule.total_steps is {total_steps}: the"
            " run fails behind its last epoch, and keeps its steps up to the last checkpoint. Set total_steps to those"
            " steps, or more epochs"
        )


def run_storages(config: "TrainRunConfig | VaeRunConfig") -> "list[Storage]":
    """Open the folder of a run, and the separate place of its checkpoints, if any.

    Raises:
        UsageError: one of them is a dataset.
    """
    from reelweave.loader.dataset.manifest import MANIFEST
    from reelweave.loader.storage import open_storage

    storages = []
    for key, uri in (("out", config.out), ("checkpoints", config.checkpoints)):
        if uri:
            storages.append(open_storage(uri, config.storage))
            if storages[-1].stat(MANIFEST) is not None:
                raise UsageError(f"{key}: {uri} is a dataset; give the run a folder of its own")
    return storages


def keep_config(config: "TrainRunConfig | VaeRunConfig", rank: int, command: str) -> None:
    """Write a run's resolved configuration into its folder, below the command that repeats it; on the first rank.

    Call it once the run goes on with it: one that is refused must not replace that of the checkpoints.
    """
    if rank:
        return
    file = config.out / f"{command}.yaml"
    write_whole(file, kept_yaml(config, [command, "--config", str(file)]).encode())


def _find_stored(config: "TrainRunConfig", source: "SampleSource", world: "World") -> "StoredEncoders":
    """Return the encoders that need not be loaded, because all streams hold their outputs."""
    from reelweave.loader.blend import Blend, open_source
    from reelweave.loader.dataset import Dataset
    from reelweave.train.latents.stored_encoders import find_stored

    other = config.held_out and config.held_out.dataset
    sources = [source, *([open_source(other, config.storage)] if other else [])]
    latents = [source.latents if config.stream.latents else None for source in sources]
    first = source.datasets[0] if isinstance(source, Blend) else source
    files = first.latent_files() if isinstance(first, Dataset) else {}
    return find_stored(config.train.encoders, latents, next(iter(files.values()), None), world)


def _held_out(
    config: "TrainRunConfig", open_stream: "Callable[[str, StreamConfig], VideoStream]"
) -> "HeldOutEvaluation | None":
    from reelweave.train.loop.evaluation import HeldOutEvaluation

    if config.held_out is None:
        return None
    dataset, held_out_stream = held_out_source(config.held_out.dataset, config.dataset, config.stream)
    batches = held_out_batches(dataset, config.held_out.steps, held_out_stream, open_stream)
    return HeldOutEvaluation(config.held_out.every_steps, batches, config.held_out.before_first_step)


def _validation(config: "TrainRunConfig") -> "Validation | None":
    from reelweave.pipelines.terminal.mp4 import encode_mp4
    from reelweave.train.loop.validation import Validation

    if config.validation is None:
        return None
    fps = None if config.stream.curriculum else config.stream.buckets.sampling.fps
    return Validation(config.validation, encode_mp4, fps)


def held_out_source(dataset: str | None, trained: str, stream: "StreamConfig") -> "tuple[str, StreamConfig]":
    """Return the dataset of the held-out clips, and how it is streamed.

    Args:
        dataset: dataset of other clips, of which no split is drawn; None for the other part of the split.
        trained: dataset of the run.
        stream: configuration of the run's stream.
    """
    split = stream.split
    if split is None:
        return dataset or trained, stream
    if dataset is not None and dataset != trained:
        return dataset, stream.model_copy(update={"split": None})
    part = "train" if split.part == "val" else "val"
    return trained, stream.model_copy(update={"split": split.model_copy(update={"part": part})})


def held_out_batches(
    dataset: str,
    steps: int,
    stream: "StreamConfig",
    open_stream: "Callable[[str, StreamConfig], VideoStream]",
) -> "Callable[[], Iterator[Microbatch | Pack]]":
    """Return a function that yields this rank's batches of the first steps of a dataset, the same at each call.

    Raises:
        UsageError: The dataset fills no step; told now and not at the first evaluation.
    """
    try:
        plain = {
            "epochs": 1,
            "captions": {},
            "caption_dropout": 0.0,
        }  # captions are their own, so that they stay
        held_out = open_stream(dataset, stream.model_copy(update=plain))
    except UsageError as error:
        raise UsageError(f"held_out.dataset {dataset}: {error}") from error
    begin = dict(held_out.state_dict())

    def first_steps() -> "Iterator[Microbatch | Pack]":
        held_out.load_state_dict(begin)
        return takewhile(lambda batch: batch.step < steps, held_out)

    return first_steps


def summary(result: "TrainResult") -> str:
    """Return one line on what a run did."""
    return (
        f"{result.steps} step{'s' * (result.steps != 1)}: {loss_change(result)},"
        f" {result.samples_per_s:.1f} samples/s; checkpoint: {result.checkpoint}"
    )


def loss_change(result: "TrainResult") -> str:
    """Return the loss at the start and at the end of a run, and its change."""
    first, last = result.first_loss, result.last_loss
    if first is None or last is None:
        return "no loss"
    if first == last:
        return f"loss {last:.3f}"
    change = "" if first == 0 else f" ({abs(1 - last / first):.0%} {'lower' if last < first else 'higher'})"
    return f"loss {first:.3f} -> {last:.3f}{change}"
