"""A rank of a run that torchrun starts: OUT STEPS.

Rank 1 of the first attempt kills itself while it makes the eighth step.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.train.clips import ClipStream, tiny_config
from train.loop.trainer import Trainer

if __name__ == "__main__":
    out, steps = sys.argv[1:]
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stream = ClipStream(rank, world_size)
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        whole = stream.microbatch
        stream.microbatch = lambda step, slot=0: (  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGKILL) if step == 7 else whole(step, slot)
        )
    config = tiny_config(int(steps)).model_copy(update={"lost_after_s": 4.0})
    Trainer(config, stream, Path(out)).run()
