"""The trainer that fine-tunes a VAE."""

from pathlib import Path

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.loop.loop import TrainingLoop
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.trained.frozen_parts import read_parts, vae_parts
from reelweave.train.step.batches import BatchStream, ShapedStream
from reelweave.train.vae.evaluation import Evaluation
from reelweave.train.vae.network import VideoVae
from reelweave.train.vae.task import VaeTask


class VaeTrainer(TrainingLoop[VaeTrainConfig]):
    """A run that trains a VAE, and with a GAN term its discriminator; all state is on every rank.

    Args:
        config: The run.
        stream: This rank's microbatches.
        out: Folder of the run.
        look: Clips that are not trained on, to evaluate on.
        checkpoints: Storage of the checkpoints.
    """

    def __init__(
        self,
        config: VaeTrainConfig,
        stream: BatchStream,
        out: Path,
        look: Evaluation | None = None,
        checkpoints: Storage | None = None,
    ) -> None:
        super().__init__(config, stream, out, checkpoints)
        self._look = look

    def task(self, ranks: Ranks) -> VaeTask:
        task = VaeTask(self._config, ranks.world, self._out, self._look)
        _check_shapes(self._stream, task.vae)
        self._parts = read_parts(ranks.world, lambda: vae_parts(self._config))
        return task


def _check_shapes(stream: BatchStream, vae: VideoVae) -> None:
    """Check all shapes of a stream that knows them before the run begins: a rare one would end it after hours."""
    for bucket in stream.shapes if isinstance(stream, ShapedStream) else ():
        if (bucket.frames - 1) % vae.frames_step:
            raise UsageError(
                f"stream.buckets.frames (or those of a stage in stream.curriculum) has {bucket.frames}, of which"
                f" {vae.family} would make another number of frames: take 1 + a multiple of {vae.frames_step}"
            )
