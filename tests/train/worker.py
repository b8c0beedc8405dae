"""One process of a training run, for tests that kill it or start several: OUT STEPS [STALL_BEFORE]."""

import os
import sys
from pathlib import Path

import torch

from tests.train.clips import ClipStream, tiny_config
from train.trainer import Trainer

if __name__ == "__main__":
    out, steps, *stall = sys.argv[1:]
    torch.set_num_threads(1)
    stream = ClipStream(
        int(os.environ.get("RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
        int(stall[0]) if stall else None,
    )
    Trainer(tiny_config(int(steps)), stream, Path(out)).run()
