"""Rank functions: runs and models on frozen parts, and how many files each rank has read for their digests."""

from pathlib import Path

from reelweave.loader.storage import checksums
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.processes import enter
from reelweave.train.loop.trainer import Trainer
from reelweave.train.sampling.trained.load import load_trained
from tests.train.clips import ClipStream


def digested() -> int:
    return checksums._cached_checksum.cache_info().misses


def train(config_json: str, out: str) -> None:
    config = TrainConfig.model_validate_json(config_json)
    with enter(config) as processes:
        world = processes.ranks.world
        Trainer(config, ClipStream(world.rank, world.size), Path(out) / "run").run_on(processes)
        (Path(out) / f"train-{world.rank}").write_text(str(digested()))


def sample(out: str) -> None:
    with join("cpu") as world:
        load_trained(str(Path(out) / "run"), world.device, world=world)
        (Path(out) / f"sample-{world.rank}").write_text(str(digested()))
