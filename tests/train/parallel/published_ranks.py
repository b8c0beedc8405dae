"""Ranks of several runs of published models."""

import os
from pathlib import Path

from tests.train.clips import ClipStream
from train.config.run import TrainConfig
from train.distributed.world import join
from train.loop.trainer import Trainer
from train.parallel.mesh import DATA, Mesh

IMPORTED_FIRST = ("diffusers.models.transformers", "diffusers.models.autoencoders", "peft")


def train_all(folder: str) -> None:
    """Trains in a folder that holds the configuration of each run as NAME.json."""
    out = Path(folder)
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
