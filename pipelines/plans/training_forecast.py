"""Forecast of a training run before anything is loaded: samples and steps, memory by shape, work and time."""

from typing import NamedTuple

import numpy as np

from reelweave.loader.blend import open_source
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.shapes import StepShape
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.mesh import DATA, Mesh

_GIB = 2**30
_TERA = 1e12


class ShapeForecast(NamedTuple):
    """Samples of one shape, and what a microbatch of them needs.

    Attributes:
        shape: frames, height and width.
        samples: number of samples in the first epoch.
        batch: samples of a microbatch, B.
        tflop: TFLOP of forward and backward of one sample.
        peak_gib: memory of the rank that holds most; None where it is not predicted.
    """

    shape: str
    samples: int
    batch: int
    tflop: float
    peak_gib: float | None


class TrainingForecast(NamedTuple):
    """Forecast of a whole run.

    Attributes:
        ranks: number of ranks.
        samples: samples of the first epoch with a bucket, each as often as it is drawn.
        unassigned: those without one.
        first_stage: True if these and the work are of the first of several stages (``stream.curriculum``).
        steps_per_epoch: optimizer steps of the first epoch.
        total_steps: optimizer steps of the run.
        encodes: True if videos are encoded in each step, which is in the memory and not in the time.
        state_gib: memory of weights, gradients, optimizer state and encoders; None where it is not predicted.
        tflop_per_step: mean TFLOP of forward and backward of a step on all ranks, without recomputation.
        step_s: seconds of a mean step; None without a speed.
        hours: hours of all steps; None without a speed.
        shapes: shapes with samples, the most demanding first.
    """

    ranks: int
    samples: int
    unassigned: int
    first_stage: bool
    steps_per_epoch: int
    total_steps: int
    encodes: bool
    state_gib: float | None
    tflop_per_step: float
    step_s: float | None
    hours: float | None
    shapes: list[ShapeForecast]

    @property
    def peak_gib(self) -> float | None:
        """Memory of the largest shape; None where it is not predicted."""
        peaks = [shape.peak_gib for shape in self.shapes if shape.peak_gib is not None]
        return max(peaks, default=None)


def forecast_training(config: TrainRunConfig, ranks: int, tflops: float | None) -> TrainingForecast:
    """Return what a run needs; opens the index of its dataset, and no weights.

    Args:
        config: configuration of the run.
        ranks: number of its ranks.
        tflops: TFLOP/s that each rank keeps up, forward and backward; None: unknown.

    Raises:
        UsageError: the layout does not fit the ranks, or the dataset not the stream.
    """
    step = config.train.step
    mesh = Mesh.of(config.train.parallel, ranks)
    stream = VideoStream(open_source(config.dataset, config.storage), config.stream, 0, mesh.degree(DATA))
    assignment, encodes = stream.assignment, stream.latents is None or not stream.latents.complete
    # An epoch draws what is selected, and of a blend some samples more than once.
    drawn = stream.cursor.plans.plan(stream.cursor.position).draws.rows
    bucket_D = assignment.bucket_of[drawn]
    counts = np.bincount(bucket_D[bucket_D >= 0], minlength=len(assignment.buckets))
    # Work of a sample of each shape, by a model without weights.
    bundle = Bundle(step.modules, meta=True, unread=True)
    flops = [
        bundle.dit.step_flops(
            bundle.latent_size((bucket.frames, bucket.height, bucket.width)), assignment.max_text_tokens
        )
        for bucket in assignment.buckets
    ]
    used = sorted(
        np.flatnonzero(counts), key=lambda index: -flops[index] * assignment.batch_sizes[index].batch
    )
    peaks, state = _memory(config, assignment, [int(index) for index in used], ranks, not encodes)
    shapes = [
        ShapeForecast(
            str(assignment.buckets[index]),
            int(counts[index]),
            assignment.batch_sizes[index].batch,
            flops[index] / _TERA,
            peak,
        )
        for index, peak in zip(used, peaks, strict=True)
    ]
    tflop_per_step = float(counts @ np.array(flops, np.float64)) / _TERA / stream.steps_per_epoch
    step_s = None if tflops is None else tflop_per_step / (tflops * ranks)
    total_steps = config.train.schedule.total_steps
    return TrainingForecast(
        ranks,
        int(counts.sum()),
        int((bucket_D < 0).sum()),
        config.stream.curriculum is not None,
        stream.steps_per_epoch,
        total_steps,
        encodes,
        state,
        tflop_per_step,
        step_s,
        None if step_s is None else step_s * total_steps / 3600,
        shapes,
    )


def _memory(
    config: TrainRunConfig, assignment: Assignment, used: list[int], ranks: int, encoded: bool
) -> tuple[list[float | None], float | None]:
    """Return the peak of each shape and the state, GiB; None where a layout is not predicted."""
    parallel = config.train.parallel
    if parallel.pp > 1 or parallel.activation_checkpointing == "memory_budget":
        return [None] * len(used), None
    shapes = [
        StepShape(assignment.buckets[index], assignment.batch_sizes[index].batch, assignment.lengths[index])
        for index in used
    ]
    footprints = dry_run(config.train.step, shapes, ranks, encoded)
    return [found.peak / _GIB for found in footprints], footprints[0].state / _GIB
