"""A data source of the loader's contract that holds its clips in memory."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.plan.position import Position
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.config.log import LogConfig
from reelweave.train.config.model import DiTConfig
from reelweave.train.config.optimizer import OptimizerConfig, ScheduleConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.config.tokenizer import PatchTransformConfig

BUCKETS = (Bucket(5, 16, 16), Bucket(3, 16, 24))
SAMPLES_PER_STEP = 4


def clip(number: int, bucket: Bucket) -> torch.Tensor:
    """A coloured wave that moves over the frame; uint8 [3, T, H, W]."""
    t, y, x = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float32) for n in (bucket.frames, bucket.height, bucket.width)),
        indexing="ij",
    )
    angle = 2 * math.pi * number / 7
    wave = torch.sin(0.25 * (math.cos(angle) * x + math.sin(angle) * y) + 0.5 * t)
    return torch.stack([(127.5 + 120 * wave * (-1) ** c).round().to(torch.uint8) for c in range(3)])


class ClipStream:
    """Steps of four clips, split over the ranks; the shape changes from step to step.

    Args:
        rank: of the process.
        world_size: 1, 2 or 4.
        sizes: samples of each of this rank's microbatches of a step; one microbatch of all, where empty.
        first: of this rank's samples of a step; None: all ranks have equally many.
        samples: of a step, on all ranks.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        sizes: tuple[int, ...] = (),
        first: int | None = None,
        samples: int = SAMPLES_PER_STEP,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.sizes = sizes or (samples // world_size,)
        self.first = rank * (samples // world_size) if first is None else first
        self.samples = samples
        self.position = 0
        self.mean_samples = float(samples)

    def __iter__(self) -> Iterator[Microbatch]:
        while True:
            self.position += 1
            for slot in range(len(self.sizes)):
                yield self.microbatch(self.position - 1, slot)

    def microbatch(self, step: int, slot: int = 0) -> Microbatch:
        bucket = BUCKETS[step % 2]
        first = self.first + sum(self.sizes[:slot])
        numbers = [(step * 3 + i) % 9 for i in range(first, first + self.sizes[slot])]
        return Microbatch(
            bucket=bucket,
            length=math.prod((bucket.frames, bucket.height, bucket.width)),
            keys=tuple(f"clip{number}" for number in numbers),
            captions=tuple(f"a wave going {number}" for number in numbers),
            video_BCTHW=torch.stack([clip(number, bucket) for number in numbers]),
            passes=(step,) * len(numbers),
            step=step,
            epoch=step,
            weight=len(numbers) / self.samples,
            step_samples=self.samples,
            mean_samples=self.mean_samples,
            slot=slot,
            slots=len(self.sizes),
            after=Position(step + 1, 0, ()),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def tiny_config(
    total_steps: int = 8,
    every_steps: int = 4,
    keep_last: int = 2,
    lr: float = 2e-3,
    tensorboard: bool = False,
) -> TrainConfig:
    return TrainConfig(
        model=DiTConfig(hidden=48, heads=2, layers=2, patch=(1, 2, 2)),
        tokenizer=PatchTransformConfig(frames=2, height=2, width=2),
        text=HashedTextConfig(vocabulary=64, width=16, max_text_tokens=8),
        optimizer=OptimizerConfig(lr=lr),
        schedule=ScheduleConfig(total_steps=total_steps, warmup_steps=2),
        checkpoint=CheckpointConfig(every_steps=every_steps, keep_last=keep_last),
        log=LogConfig(tensorboard=tensorboard),
        device="cpu",
    )
