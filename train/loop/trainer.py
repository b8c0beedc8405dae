"""The trainer of denoisers."""

import logging
from pathlib import Path

from reelweave.loader.storage import Storage, StorageConfig
from reelweave.train.checkpoint.folder import latest
from reelweave.train.checkpoint.names import folder_of
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import BaseWeights, FrozenPart, read_checkpoint_state
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World
from reelweave.train.loop.denoiser import DenoiserTask
from reelweave.train.loop.evaluation import HeldOutEvaluation
from reelweave.train.loop.loop import TrainingLoop
from reelweave.train.loop.stages.start import Beginning, start_from
from reelweave.train.loop.validation import Validation
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.trained.base import base_weights, keep_base, read_base
from reelweave.train.sampling.trained.frozen_parts import frozen_parts, other_expert_part, read_parts
from reelweave.train.sampling.trained.origin import check_start
from reelweave.train.step.batches import BatchStream

_log = logging.getLogger(__name__)


class Trainer(TrainingLoop[TrainConfig]):
    """A run that trains a denoiser with one of the objectives.

    Args:
        config: The run.
        stream: This rank's microbatches.
        out: Folder of the run.
        held_out: Clips that are not trained on, to evaluate on.
        checkpoints: Storage of the checkpoints.
        stored: Encoders that need not be loaded, since all streams hold their outputs.
        validation: Videos to sample from the weights at intervals.
        storage: How storages of other runs are read.
    """

    def __init__(
        self,
        config: TrainConfig,
        stream: BatchStream,
        out: Path,
        held_out: HeldOutEvaluation | None = None,
        checkpoints: Storage | None = None,
        stored: StoredEncoders | None = None,
        validation: Validation | None = None,
        storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(config, stream, out, checkpoints)
        self._of_other_runs = storage
        self._held_out, self._stored, self._validation = held_out, stored, validation

    def task(self, ranks: Ranks) -> DenoiserTask:
        config = self._config
        if config.lora is not None:
            self._base = read_base(ranks.world, self._read_base)
            lora = keep_base(config.lora, self._base) or config.lora
            if lora.start_from and on_first(ranks.world, lambda: latest(self._storage) is not None):
                lora = lora.model_copy(update={"start_from": None})  # the checkpoint has what became of them
            if lora.start_from and isinstance(config.model, DiffusersConfig):
                path, subfolder = lora.start_from, config.model.subfolder
                said = on_first(ranks.world, lambda: check_start(path, subfolder, self._base))
                if said and ranks.world.rank == 0:
                    _log.warning("%s", said)
            config = config.model_copy(update={"lora": lora})
        self._parts = read_parts(ranks.world, lambda: {**frozen_parts(config.modules), **self._read_other()})
        return DenoiserTask(
            config, ranks, self._stream, self._out, self._held_out, self._stored, self._validation
        )

    def begin_new(self, checkpoints: Checkpoints, world: World) -> Beginning:
        return start_from(self._config, checkpoints, self._base, self._parts, self._of_other_runs, world)

    def _read_other(self) -> dict[str, FrozenPart]:
        """Return the other one of two experts, as published, if validation samples with it."""
        asked = self._validation.config if self._validation else None
        if asked is None or asked.checkpoint_2:
            return {}
        return other_expert_part(self._config.model, asked.lora_2)

    def _read_base(self) -> BaseWeights | None:
        """Return the base weights of adapters, those of the latest checkpoint if they are still there."""
        step = latest(self._storage)
        saved = read_checkpoint_state(self._storage, folder_of(step)).base if step else None
        lora = keep_base(self._config.lora, saved)
        return base_weights(self._config.modules._replace(lora=lora))
