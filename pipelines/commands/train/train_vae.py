"""Fine-tune a video tokenizer, a causal 3D VAE, on a dataset, in one process or under torchrun.

The same command resumes from the last checkpoint. SIGTERM and SIGUSR1 save a checkpoint and end with status 75.
OUT/train-vae.yaml keeps the resolved configuration.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from reelweave.pipelines.commands.train.train import add_arguments as add_arguments
from reelweave.pipelines.commands.train.train import (
    finish,
    held_out_batches,
    held_out_source,
    keep_config,
    run_storages,
)
from reelweave.pipelines.configuration.config import resolve

if TYPE_CHECKING:
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig
    from reelweave.train.loop.loop import TrainResult


def run(options: argparse.Namespace) -> int:
    """Train and print the change of the loss; under torchrun rank 0 prints."""
    from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig

    config = resolve(VaeRunConfig, options.config, options.set)
    return finish(train(config), config.out, options.json)


def train(config: "VaeRunConfig") -> "TrainResult":
    """Stream the dataset into the trainer, from the last checkpoint in ``config.out``."""
    from reelweave.loader.blend import open_source
    from reelweave.loader.stream.video_stream import VideoStream
    from reelweave.train.distributed.run_lease import alone
    from reelweave.train.loop.processes import enter
    from reelweave.train.vae.evaluation import Evaluation
    from reelweave.train.vae.trainer import VaeTrainer

    with enter(config.train) as processes:
        world = processes.ranks.world

        def open_stream(dataset: str, stream: "StreamConfig") -> VideoStream:
            # A dataset may hold latents, too; a tokenizer is trained on pixels. The trainer applies train.denominator.
            pixels = stream.model_copy(update={"latents": False, "denominator": "step"})
            return VideoStream(open_source(dataset, config.storage), pixels, world.rank, world.size)

        look = None
        if config.held_out:
            dataset, held_out = held_out_source(config.held_out.dataset, config.dataset, config.stream)
            batches = held_out_batches(dataset, config.held_out.steps, held_out, open_stream)
            look = Evaluation(config.held_out.every_steps, batches, config.held_out.shown)
        stream = open_stream(config.dataset, config.stream)
        storages = run_storages(config)
        with alone(world, storages, "reelweave train-vae") as held:
            checkpoints = held[-1] if config.checkpoints else None
            trainer = VaeTrainer(config.train, stream, config.out, look, checkpoints)
            return trainer.run_on(processes, partial(keep_config, config, world.rank, "train-vae"))
