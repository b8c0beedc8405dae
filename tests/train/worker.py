"""One process of a training run, for tests that kill it or start several: OUT STEPS [STALL_BEFORE | uneven | tokens].

uneven: rank 0 has two microbatches of one sample, the others one of two. tokens: samples count by their tokens.
"""

import os
import sys
from pathlib import Path

import torch

from tests.train.clips import ClipStream, tiny_config
from train.trainer import Trainer

if __name__ == "__main__":
    out, steps, *more = sys.argv[1:]
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    uneven, by_tokens = more == ["uneven"], more == ["tokens"]
    stream = ClipStream(
        rank,
        world_size,
        stall_before=int(more[0]) if more and more[0].isdecimal() else None,
        sizes=(1, 1) if uneven and rank == 0 else (),
    )
    config = tiny_config(int(steps))
    if by_tokens:
        config = config.model_copy(update={"denominator": "step_tokens"})
    Trainer(config, stream, Path(out)).run()
