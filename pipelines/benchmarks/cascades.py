"""Profile of a training run's cascades, from which `reelweave fit --cascades` makes costs."""

from pathlib import Path

from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.terminal.files import write_output
from reelweave.train.cascade.costs.profile import profile
from reelweave.train.cascade.costs.profile_csv import MeasuredCascade, profile_csv
from reelweave.train.distributed.world import join


def bench_cascades(config: TrainRunConfig, out: Path, rounds: int) -> list[MeasuredCascade] | None:
    """Measure every cascade of a run; return the rows on rank 0, None on other ranks.

    Args:
        config: configuration of the run; its dataset is not opened.
        out: the CSV; it is replaced when all shapes are measured.
        rounds: repetitions of each cascade, of which the median counts.
    """
    watch = config.train.lost_after_s, config.train.collective_timeout_s
    with join(config.train.device, *watch) as world:
        rows = list(profile(config.train.step, config.stream.buckets, world, rounds))
        if world.rank:
            return None
        write_output(out, profile_csv(rows).encode(), "--out")
        return rows
