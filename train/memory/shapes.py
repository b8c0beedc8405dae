"""What microbatches of each shape take within the real step: seconds and memory, for the fits of costs and budgets.

AdaptiveLoad, section 3.2, measures (B, S) -> step time on synthetic tensors. Here every rank makes the same step as in
training, with all its collectives, on clips of noise.
"""

import math
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from loader.batch import Microbatch
from loader.buckets.buckets import Bucket, BucketConfig, bucket_length, buckets_of
from loader.errors import RunError
from loader.plan.position import Position
from train.config.run import TrainConfig
from train.distributed.world import World
from train.measure.peak_memory import take_peak_bytes
from train.parallel.layout import Layout, lay_out
from train.parallel.mesh import DATA
from train.step.losses import losses
from train.step.step_losses import StepLosses

WARM_UP = 1


class Shape(NamedTuple):
    """A microbatch's size.

    Attributes:
        bucket: of its clips.
        batch: B.
        length: S, with the longest caption.
    """

    bucket: Bucket
    batch: int
    length: int


class MeasuredShape(NamedTuple):
    """What one shape took; the columns of a shape benchmark (`loader.buckets.measured_shapes`).

    Attributes:
        batch: B.
        length: S.
        frames: of a clip.
        height: in pixels.
        width: in pixels.
        step_s: of a step of one microbatch on each rank, the median; the slowest rank counts.
        peak_gib: of the largest rank's memory; None on a CPU.
        predicted_gib: what `train.memory.dry_run` says of it; None where it was not asked.
    """

    batch: int
    length: int
    frames: int
    height: int
    width: int
    step_s: float
    peak_gib: float | None
    predicted_gib: float | None = None


def shapes(buckets: BucketConfig) -> list[Shape]:
    """Each bucket with B = 1, 2, 4 and so on, and the most that ``memory_tokens`` allow; the smallest first."""
    found = []
    for bucket in buckets_of(buckets):
        length = bucket_length(bucket, buckets)
        most = max(1, buckets.memory_tokens // length)
        sizes = {2**power for power in range(most.bit_length())} | {most}
        found += [Shape(bucket, size, length) for size in sizes]
    return sorted(found, key=lambda shape: (shape.batch * shape.length, shape.length))


def measure(
    config: TrainConfig, buckets: BucketConfig, world: World, rounds: int = 3
) -> Iterator[MeasuredShape]:
    """Makes steps of every shape, the smallest first; the same rows on every rank.

    Args:
        config: of the run; its schedule, checkpoints and log play no part.
        buckets: of its stream.
        world: all ranks.
        rounds: steps that are timed.

    Raises:
        RunError: a shape does not fit the memory.
    """
    layout = lay_out(config, world)
    layout.share()
    for shape in shapes(buckets):
        try:
            times = [step_s(layout, config, shape, world, number) for number in range(WARM_UP + rounds)]
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"B = {shape.batch} of {shape.bucket} ({shape.batch * shape.length} tokens) does not fit the GPU:"
                " lower stream.buckets.memory_tokens; the shapes before it are measured"
            ) from error
        slowest = _largest(statistics.median(times[WARM_UP:]), world)
        size = (shape.bucket.frames, shape.bucket.height, shape.bucket.width)
        yield MeasuredShape(shape.batch, shape.length, *size, slowest, _peak_gib(world))


def step_s(layout: Layout, config: TrainConfig, shape: Shape, world: World, number: int) -> float:
    """Seconds of the step of this number, as training makes it; the peak of a GPU's memory counts from its begin."""
    batch = noise(config, shape, layout.ranks.along(*DATA).size, number)
    take_peak_bytes(world.device)
    _wait(world)
    began = time.perf_counter()
    layout.zero_gradients()
    layout.keep_up(1)
    own = StepLosses(config.denominator)
    found = losses(layout.bundle, config, batch, world.device, errors=layout.errors)
    own.add(batch, found).backward()  # type: ignore[no-untyped-call]  # torch's own
    layout.sum_gradients()
    own.totals(world, layout.ranks.along(*DATA).size)
    own.normalise_(layout.weights.values())
    layout.clip(config.optimizer.grad_clip)
    layout.update()
    _wait(world)
    return time.perf_counter() - began


def noise(config: TrainConfig, shape: Shape, data_ranks: int, number: int) -> Microbatch:
    """Clips of noise with the longest captions, as one of a step's microbatches on so many data-parallel ranks."""
    draw = torch.Generator().manual_seed(number)
    bucket, words = shape.bucket, range(config.text.max_text_tokens)
    size = (shape.batch, 3, bucket.frames, bucket.height, bucket.width)
    return Microbatch(
        bucket=bucket,
        length=shape.length,
        keys=tuple(f"noise{sample}" for sample in range(shape.batch)),
        captions=(" ".join(f"word{word}" for word in words),) * shape.batch,
        video_BCTHW=torch.randint(256, size, dtype=torch.uint8, generator=draw),
        passes=(number,) * shape.batch,
        step=number,
        epoch=0,
        weight=1 / data_ranks,
        step_samples=shape.batch * data_ranks,
        mean_samples=float(shape.batch * data_ranks),
        slot=0,
        slots=1,
        after=Position(number + 1, 0, ()),
    )


def _wait(world: World) -> None:
    """Until all ranks, and what they asked their devices for, are here."""
    world.barrier()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def _largest(seconds: float, world: World) -> float:
    return world.largest(math.ceil(seconds * 1e9)) / 1e9


def _peak_gib(world: World) -> float | None:
    own = take_peak_bytes(world.device)
    return None if own is None else world.largest(own) / 2**30
