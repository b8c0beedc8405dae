"""A process of several runs, under torchrun: OUT, with a configuration for each run in OUT/NAME.json."""

import os
import sys
from pathlib import Path

import torch

from tests.train.clips import ClipStream
from train.config import TrainConfig
from train.parallel.mesh import DATA, Mesh
from train.parallel.world import join
from train.trainer import Trainer

if __name__ == "__main__":
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for path in sorted(out.glob("*.json")):
            config = TrainConfig.model_validate_json(path.read_bytes())
            mesh = Mesh.of(config.parallel, world_size)
            data_rank = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
            # Rank 0 has two microbatches where the other has one: with FSDP the other idles through one.
            sizes = (1, 1) if data_rank < mesh.degree(DATA) - 1 else ()
            stream = ClipStream(data_rank, mesh.degree(DATA), sizes=sizes)
            Trainer(config, stream, out / path.stem).run()
