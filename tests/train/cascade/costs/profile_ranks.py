"""A rank that takes part in a profile."""

from pathlib import Path

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.train.cascade.costs.profile import profile
from reelweave.train.cascade.costs.profile_csv import profile_csv
from reelweave.train.distributed.world import join
from tests.train.clips import tiny_config

CONFIG = tiny_config()
BUCKETS = BucketConfig(
    frames=(1, 3, 5),
    sizes=((16, 16), (16, 24)),
    max_text_tokens=9,
    memory_tokens=60,
    compression=CONFIG.compression,
)


def measure(out: str) -> int:
    with join("cpu") as world:
        rows = profile(CONFIG.step, BUCKETS, world, rounds=1)
        (Path(out) / f"{world.rank}.csv").write_text(profile_csv(rows))
    return 0
