"""Shapes of a training run: measured within its step, or their memory predicted without a GPU."""

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from reelweave.loader.buckets.memory_fit import fit_memory
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.terminal.files import write_output
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import join
from reelweave.train.memory.dry_run import communicator_bytes, dry_run
from reelweave.train.memory.shapes import MeasuredShape, StepShape, measure, shapes

GIB = 2**30


class PredictedShape(NamedTuple):
    """Predicted memory of one shape, in GiB of the rank that holds most.

    Attributes:
        batch: B.
        length: S.
        frames: frames per clip.
        height: height in pixels.
        width: width in pixels.
        state_gib: weights, gradients, optimizer state, averages, frozen encoders.
        kept_gib: activations kept for the backward.
        peak_gib: most at once.
    """

    batch: int
    length: int
    frames: int
    height: int
    width: int
    state_gib: float
    kept_gib: float
    peak_gib: float


def predict_shapes(config: TrainRunConfig, ranks: int) -> list[PredictedShape]:
    """Predict the memory of each shape (`reelweave.train.memory.dry_run`) without a dataset or a GPU.

    Args:
        config: configuration of the run.
        ranks: number of ranks of the run.
    """
    bucket_shapes = shapes(config.stream.buckets)
    return [
        PredictedShape(*_size(shape), prediction.state / GIB, prediction.kept / GIB, prediction.peak / GIB)
        for shape, prediction in zip(
            bucket_shapes, dry_run(config.train.step, bucket_shapes, ranks), strict=True
        )
    ]


def communicators_gib(config: TrainRunConfig, ranks: int) -> float:
    """Return the memory of a run's communicators on each GPU, at most, in GiB; no prediction of a step has it."""
    return communicator_bytes(config.train.step, ranks) / GIB


def fitting_tokens(rows: Iterable[PredictedShape], memory_gib: float, parallel: ParallelConfig) -> int:
    """Return the largest ``memory_tokens`` whose microbatches stay below a limit.

    Args:
        rows: predictions.
        memory_gib: memory of a GPU that a step may use.
        parallel: layout of the run, for advice where nothing fits.

    Raises:
        UsageError: nothing fits, or the shapes are too few, or too small, to tell.
    """
    columns = ("batch", "length", "peak_gib")
    text = "\n".join([",".join(columns), *(",".join(str(getattr(row, c)) for c in columns) for row in rows)])
    return fit_memory(text, "predicted").tokens(memory_gib, memory_advice(parallel))


def memory_advice(parallel: ParallelConfig) -> str:
    """Return what a layout has not done yet to need less memory."""
    remedies = []
    if parallel.shard == "optimizer" or parallel.dp_shard == 1:
        remedies.append("shard weights (train.parallel: {dp_replicate: 1, dp_shard: rest, shard: weights})")
    elif parallel.dp_shard != "rest":
        remedies.append(
            "shard the weights over more ranks (train.parallel: {dp_replicate: 1, dp_shard: rest})"
        )
    if parallel.reduce_gradients == "step":
        remedies.append("reduce gradients after each microbatch (train.parallel.reduce_gradients=microbatch)")
    if parallel.activation_checkpointing == "full":
        remedies.append(
            "keep the inputs of blocks on the host (train.parallel.activation_checkpointing=offload)"
        )
    elif parallel.activation_checkpointing != "offload":
        remedies.append("checkpoint activations (train.parallel.activation_checkpointing=full)")
    return ", or ".join(
        [*remedies, "start more ranks" if parallel.dp_shard == "rest" else "take smaller buckets"]
    )


def bench_shapes(config: TrainRunConfig, out: Path) -> list[MeasuredShape] | None:
    """Measure each shape, with predictions on a GPU; return the rows on rank 0, None on other ranks.

    Args:
        config: configuration of the run; its dataset is not opened.
        out: the CSV; it is replaced when all shapes are measured, and holds those that were when one does not fit.
    """
    predicted = iter(_predicted_gib(config))
    rows: list[MeasuredShape] = []
    watch = config.train.lost_after_s, config.train.collective_timeout_s
    with join(config.train.device, *watch) as world:
        try:
            for row in measure(config.train.step, config.stream.buckets, world):
                rows.append(row._replace(predicted_gib=next(predicted, None)))
        finally:
            if world.rank == 0 and rows:
                _write(rows, out)
        return rows if world.rank == 0 else None


def _predicted_gib(config: TrainRunConfig) -> list[float]:
    """Return predicted memory on rank 0, before it joins the others; empty without a GPU or a prediction."""
    if config.train.device == "cpu" or not torch.cuda.is_available() or os.environ.get("RANK", "0") != "0":
        return []
    try:
        return [row.peak_gib for row in predict_shapes(config, int(os.environ.get("WORLD_SIZE", "1")))]
    except UsageError:  # what is wrong with the run itself, measuring it tells
        return []


def _size(shape: StepShape) -> tuple[int, int, int, int, int]:
    bucket = shape.bucket
    return shape.batch, shape.length, bucket.frames, bucket.height, bucket.width


def _write(rows: list[MeasuredShape], out: Path) -> None:
    columns = [name for name in MeasuredShape._fields if getattr(rows[0], name) is not None]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row._asdict() for row in rows)
    write_output(out, text.getvalue().encode(), "--out")
