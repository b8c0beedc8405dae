"""The cascades of a training run, measured one by one: what costs for `reelweave plan` are fitted to."""

from pathlib import Path

from pipelines.configuration.train_config import TrainRunConfig
from pipelines.terminal.files import write_whole
from train.cascade.costs.profile import profile
from train.cascade.costs.profile_csv import MeasuredCascade, profile_csv
from train.distributed.world import join


def bench_cascades(config: TrainRunConfig, out: Path, rounds: int) -> list[MeasuredCascade] | None:
    """What each cascade took; under torchrun on rank 0, None on the others.

    Args:
        config: of the run; its dataset is not opened.
        out: the CSV; it is replaced when all shapes are measured.
        rounds: of each, whose median is taken.
    """
    with join(config.train.device, config.train.lost_after_s) as world:
        rows = list(profile(config.train, config.stream.buckets, world, rounds))
        if world.rank:
            return None
        write_whole(out, profile_csv(rows).encode(), "--out")
        return rows
