"""A run under torchrun's agent: a node of two ranks, of which one kills itself in the first attempt."""

import os
import signal
import time
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.folder import latest
from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream, tiny_config


def launch(out: str, steps: int) -> None:
    """Runs the ranks as ``torchrun --standalone --nproc-per-node=2 --max-restarts=1``, forked from this process."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="restarts",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, train)(out, steps)


def train(out: str, steps: int) -> None:
    """A rank; rank 1 of the first attempt kills itself from the eighth step on, once a checkpoint is there."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Stream(ClipStream):
        def microbatch(self, step, slot=0):
            if (rank, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (1, "0") and step > 4:
                # Checkpoints are written in the background, and published between two steps.
                if not (there := latest(open_storage(Path(out) / "checkpoints"))):
                    time.sleep(0.5)
                if step >= 7 and (there or step == steps - 1):
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().microbatch(step, slot)

    config = tiny_config(steps).model_copy(update={"lost_after_s": 4.0})
    Trainer(config, Stream(rank, world_size), Path(out)).run()
