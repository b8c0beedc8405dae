"""The loop of optimizer steps, shared by all trainers: a stream of microbatches in, checkpoints and numbers out."""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

import torch

from reelweave.loader.errors import NoRoomError, RunError, lacks_room
from reelweave.loader.settings import unread_keys
from reelweave.loader.storage import Storage, open_storage
from reelweave.loader.text import pluralize
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import BaseWeights, FrozenPart, ancestry
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.readers import open_readers
from reelweave.train.loop.processes import Processes, enter
from reelweave.train.loop.resume import ExternalFiles, resume
from reelweave.train.loop.stages.record import write_ancestors
from reelweave.train.loop.stages.start import Beginning
from reelweave.train.loop.steps import Steps
from reelweave.train.loop.task import TrainingTask
from reelweave.train.measure.peak_flops import peak_flops_per_s
from reelweave.train.measure.profiler import Profiler
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.step.batches import BatchStream
from reelweave.train.step.learning_rate import unreached_rate
from reelweave.train.step.work_stealing import share_steps

Config = TypeVar("Config", TrainConfig, VaeTrainConfig)

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # of the run's folder
_UNUSABLE = (errno.EACCES, errno.EIO, errno.ESTALE)
"""Errors of a file that was written, or of one that was read, such as a model's; they do not say which."""
_GONE = (errno.ENOENT, errno.ENOTDIR)
"""Errors of a path whose folder was there when the run began."""


@dataclass(frozen=True)
class TrainResult:
    """Result of a training run.

    Attributes:
        steps: Optimizer steps done, those before a resume included.
        window: Number of steps in either mean loss: ten, or half of a shorter run; 0 where no step was done.
        first_loss: Mean loss of the first steps, those before a resume included; None where no step was done.
        last_loss: Mean loss of the last steps.
        samples_per_s: Samples per second over all ranks and steps.
        checkpoint: URI of the last checkpoint.
        stopped: True where a signal ended the run before its last step.
    """

    steps: int
    window: int
    first_loss: float | None
    last_loss: float | None
    samples_per_s: float
    checkpoint: str
    stopped: bool = False


class TrainingLoop(ABC, Generic[Config]):
    """A run from its latest checkpoint to its end; `Trainer` and `VaeTrainer` say what it trains.

    A step's loss is the mean over the samples of all ranks. Each microbatch is weighed by its share of the
    step and gradients are summed. The update thus depends neither on how samples lie on ranks, nor on how
    many microbatches each rank has.

    Args:
        config: The run.
        stream: This rank's microbatches.
        out: Folder of the run, on a file system that all ranks see.
        checkpoints: Storage of the checkpoints, ``out/checkpoints`` unless given. The run goes on from the latest,
            with any number of ranks.
    """

    def __init__(
        self, config: Config, stream: BatchStream, out: Path, checkpoints: Storage | None = None
    ) -> None:
        self._config: Config = config
        self._stream, self._out = stream, out
        self._storage = checkpoints or open_storage(out / "checkpoints")
        self._base: BaseWeights | None = None
        self._parts: dict[str, FrozenPart] = {}

    @abstractmethod
    def task(self, ranks: Ranks) -> TrainingTask:
        """Build what is trained, and find the base weights of adapters and the frozen parts; a collective."""

    def begin_new(self, checkpoints: Checkpoints, world: World) -> Beginning:  # noqa: ARG002 - for trainers
        """Give a new run other weights than those of its model, if it is to begin with any; a collective."""
        return Beginning()

    def run(self) -> TrainResult:
        """Train alone, or as one of torchrun's processes, as `run_on` does."""
        with enter(self._config) as processes:
            return self.run_on(processes)

    def run_on(self, processes: Processes, begins: Callable[[], None] = lambda: None) -> TrainResult:
        """Train up to ``schedule.total_steps``, or until any rank gets one of `reelweave.train.loop.interrupt.SIGNALS`.

        Args:
            processes: The ranks.
            begins: Called on each rank once its checkpoint is loaded: the configuration is one that it goes on with.

        Raises:
            UsageError: The latest checkpoint belongs to another configuration, a published part cannot be had, or the
                samples do not fit the model.
            RunError: Not one sample of all steps could be read, the stream ended early, a checkpoint is damaged or
                cannot be written, a rank was lost, or losses stay non-finite.
        """
        device = processes.ranks.world.device
        self._stream = share_steps(self._stream, self._config.parallel.work_stealing, processes.ranks.world)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                return self._train(processes, self.task(processes.ranks), begins)
            except OSError as error:
                if error.errno in _UNWRITABLE:
                    fault = (
                        f"{error.filename or self._out} cannot be written: {error.strerror}; make room there"
                    )
                elif error.errno in _UNUSABLE:
                    where = error.filename or f"a file of the run, such as those of {self._out},"
                    fault = f"{where} cannot be read or written: {error.strerror}; see to its permissions and disk"
                elif error.errno in _GONE and not self._out.is_dir():
                    raise RunError(
                        f"{error.filename or self._out} cannot be written: the folder {self._out} was removed, moved or"
                        " replaced while the run wrote to it; bring it back, or begin anew with another `out`"
                    ) from error
                else:
                    raise
                kind = NoRoomError if lacks_room(error) else RunError
                raise kind(f"{fault}, and the same command goes on from the last checkpoint") from error

    def _train(self, processes: Processes, task: TrainingTask, begins: Callable[[], None]) -> TrainResult:
        config, world = self._config, processes.ranks.world
        total_steps = config.schedule.total_steps
        # Weights and position of the latest checkpoint, before anything of the run is written.
        checkpoints = Checkpoints(self._storage, config.checkpoint, world, task.state())
        done, begun = self._begin(checkpoints, world)
        outside = ExternalFiles(self._base, self._parts, begun.ancestors)
        checkpoints.reserve()
        # From here on this configuration is the one of the folder.
        self._out.mkdir(parents=True, exist_ok=True)
        begins()
        changed = write_ancestors(self._out, begun.ancestors) if world.rank == 0 else ""
        peak = peak_flops_per_s(config.log.peak_tflops, world)
        writes = world.rank == 0
        readers = open_readers(self._out, config, done, writes)
        with (
            RunLog(self._out, config.log, done, total_steps, writes, readers) as log,
            Profiler(self._out, config.log, world, done) as profiler,
        ):
            log.say(_beginning(task.description, world, done, total_steps))
            if unreached := unreached_rate(config.optimizer, config.schedule):
                log.say(unreached)
            for line in chain([changed] if changed else [], begun.lines, unread_keys(config)):
                log.say(line)
            task.start(done, log)
            # Behind what makes groups, and before the first step.
            if made := processes.ranks.groups.connect():
                log.say(_connected(made, processes.ranks.groups.most_bytes, world))
            steps = Steps(config, self._stream, processes, task, checkpoints, log, peak, outside)
            last = steps.run(done, profiler)
            if stopped := last < total_steps:
                log.say(f"asked to stop: saved behind step {last}; the same command goes on from there")
        return TrainResult(
            steps=last,
            window=log.summary.window,
            first_loss=log.summary.first_loss,
            last_loss=log.summary.last_loss,
            samples_per_s=log.summary.samples_per_s,
            checkpoint=checkpoints.uri(last),
            stopped=stopped,
        )

    def _begin(self, checkpoints: Checkpoints, world: World) -> tuple[int, Beginning]:
        """Return the number of steps done and what the run began with; a collective."""
        outside = ExternalFiles(self._base, self._parts)
        state = resume(checkpoints, self._stream, self._config, outside, world)
        if state is None:
            return 0, self.begin_new(checkpoints, world)
        words = ancestry(state.ancestors)
        return state.step, Beginning(tuple(state.ancestors), (f"the run {words}",) if words else ())


def _connected(groups: int, most_bytes: int, world: World) -> str:
    line = f"{pluralize(groups + 1, 'process group')} connected"
    if world.device.type != "cuda":
        return line
    free, total = torch.cuda.mem_get_info(world.device)
    outside = total - free - torch.cuda.memory_reserved(world.device)
    return (
        f"{line}; {outside / 2**30:.2f} GiB of this GPU are outside of PyTorch: CUDA's context, other processes, and"
        f" communicators, by estimate at most {most_bytes / 2**30:.2f} GiB"
    )


def _beginning(description: str, world: World, done: int, total_steps: int) -> str:
    if done < total_steps:
        return f"training {description} on {world.size} x {world.device}, steps {done} to {total_steps}"
    return (
        f"nothing to train: the last checkpoint has {done} steps, train.schedule.total_steps is {total_steps}"
    )
