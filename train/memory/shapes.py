"""Measured time and memory of real steps for each microbatch shape, the input of cost and budget fits.

AdaptiveLoad, section 3.2, measures (B, S) -> step time on synthetic tensors. Here every rank runs the training
step with all its collectives, on clips of noise.
"""

import math
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.assignment import Bucket, BucketConfig, bucket_length, buckets_of
from reelweave.loader.errors import RunError
from reelweave.loader.plan.position import Position
from reelweave.train.config.parts import StepConfig
from reelweave.train.distributed.world import World
from reelweave.train.measure.peak_memory import take_peak_bytes
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.transfer import read
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.layouts.parallel_model import ParallelModel
from reelweave.train.parallel.mesh import DATA, Ranks
from reelweave.train.step.step_losses import LossSums, StepLosses

WARM_UP = 1


class StepShape(NamedTuple):
    """Size of a measured microbatch.

    Attributes:
        bucket: frames, height and width of its clips.
        batch: number of samples, B.
        length: tokens per sample S, with the longest caption.
    """

    bucket: Bucket
    batch: int
    length: int


class MeasuredShape(NamedTuple):
    """Measured time and memory of one shape: columns of a benchmark (`reelweave.loader.buckets.measured_shapes`).

    Attributes:
        batch: number of samples, B.
        length: tokens per sample, S.
        frames: frames of a clip.
        height: height in pixels.
        width: width in pixels.
        step_s: seconds of a step with one microbatch per rank: median over rounds, maximum over ranks.
        peak_gib: peak memory, maximum over ranks; None on a CPU.
        predicted_gib: prediction of `reelweave.train.memory.dry_run`; None if not requested.
    """

    batch: int
    length: int
    frames: int
    height: int
    width: int
    step_s: float
    peak_gib: float | None
    predicted_gib: float | None = None


def shapes(buckets: BucketConfig) -> list[StepShape]:
    """Return each bucket with B = 1, 2, 4, ... and the maximum that ``memory_tokens`` allow, smallest first."""
    shapes = []
    for bucket in buckets_of(buckets):
        length = bucket_length(bucket, buckets)
        max_batch = max(1, buckets.memory_tokens // length)
        sizes = {2**power for power in range(max_batch.bit_length())} | {max_batch}
        shapes += [StepShape(bucket, size, length) for size in sizes]
    return sorted(shapes, key=lambda shape: (shape.batch * shape.length, shape.length))


def measure(
    config: StepConfig, buckets: BucketConfig, world: World, rounds: int = 3
) -> Iterator[MeasuredShape]:
    """Run steps of every shape, smallest first; yields the same rows on every rank.

    Args:
        config: configuration of the step.
        buckets: buckets of the run's stream.
        world: all ranks.
        rounds: number of timed steps.

    Raises:
        RunError: a shape does not fit into memory.
    """
    parallel = config.layout.parallel.model_copy(update={"schedule": "static"})
    layout = lay_out(config.with_parallel(parallel), Ranks.of(parallel, world))
    layout.share()
    for shape in shapes(buckets):
        try:
            times = [step_s(layout, config, shape, world, step) for step in range(WARM_UP + rounds)]
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"B = {shape.batch} of {shape.bucket} ({shape.batch * shape.length} tokens) does not fit the GPU:"
                " lower stream.buckets.memory_tokens; the shapes before it are measured"
            ) from error
        slowest = _largest(statistics.median(times[WARM_UP:]), world)
        size = (shape.bucket.frames, shape.bucket.height, shape.bucket.width)
        yield MeasuredShape(shape.batch, shape.length, *size, slowest, _peak_gib(world))


def step_s(layout: ParallelModel, config: StepConfig, shape: StepShape, world: World, step: int) -> float:
    """Return the seconds of one training step; also resets the GPU's peak memory at its begin."""
    data_ranks = layout.ranks.along(*DATA).size
    batch = noise(config.modules.text.max_text_tokens, shape, data_ranks, step)
    take_peak_bytes(world.device)
    _wait(world)
    began = time.perf_counter()
    layout.zero_gradients()
    losses = StepLosses(config.denominator)
    for _ in layout.passes([batch], losses.add, StepClock(world)):
        pass
    layout.sum_gradients()
    norm = layout.norm()
    *means, _ = read([*losses.means, norm])
    losses.mean(LossSums(*world.sums(losses.sums(means))), world.size, data_ranks)
    losses.normalise_(layout.weights.values())
    layout.clip(config.layout.optimizer.grad_clip, norm * losses.scale)
    layout.update()
    _wait(world)
    return time.perf_counter() - began


def noise(max_text_tokens: int, shape: StepShape, data_ranks: int, step: int) -> Microbatch:
    """Return noise clips with the longest captions as one microbatch of a step on ``data_ranks`` ranks."""
    draw = torch.Generator().manual_seed(step)
    bucket, words = shape.bucket, range(max_text_tokens)
    size = (shape.batch, 3, bucket.frames, bucket.height, bucket.width)
    return Microbatch(
        bucket=bucket,
        length=shape.length,
        keys=tuple(f"noise{sample}" for sample in range(shape.batch)),
        captions=(" ".join(f"word{word}" for word in words),) * shape.batch,
        video_BCTHW=torch.randint(256, size, dtype=torch.uint8, generator=draw),
        passes=(step,) * shape.batch,
        step=step,
        epoch=0,
        weight=1 / data_ranks,
        step_samples=shape.batch * data_ranks,
        mean_samples=float(shape.batch * data_ranks),
        slot=0,
        slots=1,
        after=Position(step + 1, 0, ()),
    )


def _wait(world: World) -> None:
    """Synchronize all ranks and their devices."""
    world.barrier()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def _largest(seconds: float, world: World) -> float:
    return world.largest(math.ceil(seconds * 1e9)) / 1e9


def _peak_gib(world: World) -> float | None:
    peak = take_peak_bytes(world.device)
    return None if peak is None else world.largest(peak) / 2**30
