"""The trainer that fine-tunes a VAE."""

from pathlib import Path

from loader.storage import Storage
from train.config.vae import VaeTrainConfig
from train.loop.loop import TrainingLoop
from train.parallel.mesh import Ranks
from train.step.batches import BatchStream
from train.vae.evaluation import Evaluation
from train.vae.task import VaeTask


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
        return VaeTask(self._config, ranks.world, self._out, self._look)
