"""One process of a run, for tests that kill it or start it by torchrun: OUT STEPS [STALL_BEFORE | killed-once].

killed-once: rank 1 of the first attempt kills itself while it makes the eighth step.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.train.clips import ClipStream, tiny_config
from train.trainer import Trainer

if __name__ == "__main__":
    out, steps, *more = sys.argv[1:]
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    stream = ClipStream(rank, world_size, stall_before=int(more[0]) if more and more[0].isdigit() else None)
    if more == ["killed-once"] and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        whole = stream.microbatch
        stream.microbatch = lambda step, slot=0: (  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGKILL) if step == 7 else whole(step, slot)
        )
    config = tiny_config(int(steps)).model_copy(update={"lost_after_s": 4.0})
    Trainer(config, stream, Path(out)).run()
