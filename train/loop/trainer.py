"""Trainers: what a run needs, put together before its loop of steps begins."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import torch

from loader.storage import Storage, open_storage
from train.config.run import TrainConfig
from train.config.vae import VaeTrainConfig
from train.loop.denoiser import DenoiserTask
from train.loop.held_out import HeldOut
from train.loop.loop import TrainingLoop, TrainResult
from train.loop.processes import Processes, enter
from train.loop.task import TrainingTask
from train.models.encoders.stored import Stored
from train.parallel.mesh import Ranks
from train.step.batches import Stream

Config = TypeVar("Config", TrainConfig, VaeTrainConfig)


class BaseTrainer(ABC, Generic[Config]):
    """A run that can start or go on; trainers of other models say what is trained.

    Args:
        config: The run.
        stream: This rank's microbatches.
        out: Folder of the run, on a file system that all ranks see.
        checkpoints: Storage of the checkpoints, ``out/checkpoints`` unless given. The run goes on from the latest,
            with any number of ranks.
    """

    def __init__(self, config: Config, stream: Stream, out: Path, checkpoints: Storage | None = None) -> None:
        self.config: Config = config
        self.stream, self.out = stream, out
        self.checkpoints = checkpoints or open_storage(out / "checkpoints")

    @abstractmethod
    def task(self, ranks: Ranks) -> TrainingTask:
        """Build what is trained; a collective."""

    def run(self) -> TrainResult:
        """Train alone, or as one of torchrun's processes, as `run_on` does."""
        with enter(self.config) as processes:
            return self.run_on(processes)

    def run_on(self, processes: Processes) -> TrainResult:
        """Train up to ``schedule.total_steps``, or until any rank gets one of `train.loop.interrupt.SIGNALS`.

        Raises:
            UsageError: The latest checkpoint belongs to another configuration, a published part cannot be had, or the
                samples do not fit the model.
            RunError: The stream ended early, a checkpoint is damaged or cannot be written, a rank was lost, or losses
                stay non-finite.
        """
        device = processes.ranks.world.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            task = self.task(processes.ranks)
            return TrainingLoop(task, self.config, self.stream, self.out, self.checkpoints, processes).run()


class Trainer(BaseTrainer[TrainConfig]):
    """A run that trains a denoiser with one of the objectives.

    Args:
        config: The run.
        stream: This rank's microbatches.
        out: Folder of the run.
        held_out: Clips that are not trained on, to evaluate on.
        checkpoints: Storage of the checkpoints.
        stored: Encoders that need not be loaded, since all streams hold their outputs.
    """

    def __init__(
        self,
        config: TrainConfig,
        stream: Stream,
        out: Path,
        held_out: HeldOut | None = None,
        checkpoints: Storage | None = None,
        stored: Stored | None = None,
    ) -> None:
        super().__init__(config, stream, out, checkpoints)
        self.held_out, self.stored = held_out, stored

    def task(self, ranks: Ranks) -> DenoiserTask:
        """Build the denoiser and lay it out."""
        return DenoiserTask(self.config, ranks, self.stream, self.out, self.held_out, self.stored)
