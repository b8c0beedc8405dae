"""Rank functions: training with work stealing, where the first rank is as slow as can be."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from reelweave.loader.batch import Batch
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.dataset import open_dataset
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.loop.denoiser import DenoiserTask
from reelweave.train.loop.trainer import Trainer
from reelweave.train.parallel.mesh import Ranks
from tests.train.clips import tiny_config

SHARED = WorkStealingConfig(share=0.5, piece=0.2, readers=2)


class Recorded(Trainer):
    """Notes the samples that a rank trains; the first rank runs nothing more until the others find no work."""

    def task(self, ranks: Ranks) -> DenoiserTask:
        task = super().task(ranks)
        forward_backward, out = task.forward_backward, Path(self._out)
        rank, size = ranks.world.rank, ranks.world.size
        waits = rank == 0 and isinstance(self._config.parallel.work_stealing, WorkStealingConfig)

        def over(step: int, other: int) -> Path:
            return out / f"over-{step}-{other}-of-{size}"

        def watched(batches: Iterable[Batch], step: int) -> Iterator[Batch]:
            with (out / f"ran-by-{rank}-of-{size}").open("a") as file:
                for index, batch in enumerate(batches):
                    while waits and index == 0 and not all(over(step, n).exists() for n in range(1, size)):
                        time.sleep(0.002)
                    keys = list(zip(batch.keys, batch.passes, strict=True)) if batch.weight else []
                    file.write("".join(f"{json.dumps([step, *key])}\n" for key in keys))
                    yield batch
            over(step, rank).touch()

        task.forward_backward = lambda batches, step, *rest: forward_backward(
            watched(batches, step), step, *rest
        )
        return task


def train_shared(dataset: str, out: str, steps: int, steals: bool, zero1: bool = False) -> None:
    """Train a few steps on a dataset, with or without work stealing."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = tiny_config(steps, every_steps=2)
    layout = {"dp_shard": size, "dp_replicate": 1, "shard": "optimizer"} if zero1 else {}
    parallel = ParallelConfig(work_stealing=SHARED if steals else None, **layout)
    buckets = BucketConfig(
        frames=(1, 5, 9),
        sizes=((16, 24), (24, 16)),
        compression=config.compression,
        max_text_tokens=9,
        memory_tokens=300,
    )
    settings = StreamConfig(buckets=buckets, microbatches=3, workers=1, prefetch=1)
    stream = VideoStream(open_dataset(dataset), settings, rank, size)
    Path(out).mkdir(exist_ok=True)
    Recorded(config.model_copy(update={"parallel": parallel}), stream, Path(out)).run()
