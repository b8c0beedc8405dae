"""Forecast of a run that `reelweave train --dry-run` prints, before anything is loaded."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from reelweave.loader.errors import UsageError
from reelweave.loader.text import pluralize
from reelweave.pipelines.terminal.console import print_json, stdout, table

if TYPE_CHECKING:
    from reelweave.pipelines.configuration.train_config import TrainRunConfig
    from reelweave.pipelines.plans.training_forecast import TrainingForecast

_OPTIONS = ("ranks", "memory_gib", "tflops")
_DOES_NOT_FIT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the dry run."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what the run needs (samples, steps, memory, time) and end, before a weight is read; needs no GPU",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="with --dry-run: ranks of the run (default: 1)"
    )
    parser.add_argument(
        "--memory-gib",
        type=float,
        metavar="GIB",
        help="with --dry-run: memory of a GPU; status 1 if it is less",
    )
    parser.add_argument(
        "--tflops",
        type=float,
        metavar="X",
        help="with --dry-run: TFLOP/s that a GPU keeps up, for hours (an H200 in bfloat16: some 400)",
    )


def check_options(options: argparse.Namespace) -> None:
    """Check the options of the dry run.

    Raises:
        UsageError: one is given without --dry-run, or is not above 0.
    """
    for name in _OPTIONS:
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and not options.dry_run:
            raise UsageError(f"{option} belongs to --dry-run: add it, or leave {option} out")
        if value is not None and not value > 0:
            raise UsageError(f"{option} {value:g} must be above 0")


def run(config: "TrainRunConfig", options: argparse.Namespace) -> int:
    """Print what a run needs; return 1 if it does not fit the memory that is given."""
    from reelweave.pipelines.benchmarks.shapes import memory_advice
    from reelweave.pipelines.plans.training_forecast import forecast_training

    forecast = forecast_training(config, options.ranks or 1, options.tflops)
    peak, limit = forecast.peak_gib, options.memory_gib
    fits = None if limit is None or peak is None else peak <= limit
    if options.json:
        shapes = [shape._asdict() for shape in forecast.shapes]
        print_json({**forecast._asdict(), "shapes": shapes, "peak_gib": peak, "fits": fits})
    else:
        for line in _lines(forecast, limit):
            stdout().print(line, markup=False, soft_wrap=True)
        rows = [
            (shape.shape, shape.samples, shape.batch, f"{shape.tflop:.3g}", _gib(shape.peak_gib))
            for shape in forecast.shapes
        ]
        columns = ("shape", "samples", "batch", "TFLOP a sample", "peak GiB")
        stdout().print(table("", columns, rows))
        if fits is False:
            stdout().print(f"to fit: {memory_advice(config.train.parallel)}", markup=False, soft_wrap=True)
    return _DOES_NOT_FIT if fits is False else 0


def _lines(forecast: "TrainingForecast", limit: float | None) -> Iterator[str]:
    """Yield the answers: memory and time first, then what they are of."""
    peak, ranks = forecast.peak_gib, pluralize(forecast.ranks, "rank")
    if peak is None:
        yield "memory: not predicted for this layout (docs/train.md, Memory)"
    else:
        verdict = "" if limit is None else f", {'fits' if peak <= limit else 'does not fit'} {limit:g} GiB"
        yield (
            f"memory: {_gib(peak)} GiB at most on a rank{verdict}; {_gib(forecast.state_gib)} of it for weights and"
            " state. CUDA's own, about a GiB, is not counted"
        )
    if forecast.step_s is None:
        yield "time: give --tflops, what a GPU keeps up, for seconds and hours"
    else:
        yield (
            f"time: {forecast.hours:,.3g} h of {ranks}, {forecast.step_s:,.3g} s a step, for forward and backward alone"
            f"{'; the VAE and text come on top' if forecast.encodes else ''}"
        )
    epochs = forecast.total_steps / forecast.steps_per_epoch
    yield (
        f"steps: {forecast.total_steps:,}, {epochs:,.2f} epochs of {forecast.steps_per_epoch:,};"
        f" {forecast.tflop_per_step:,.3g} TFLOP in a mean step of {ranks}"
    )
    left_out = f", {forecast.unassigned:,} fit no bucket" if forecast.unassigned else ""
    yield f"samples: {forecast.samples:,} an epoch{left_out}"
    if forecast.first_stage:
        yield "all of this is of the first stage of stream.curriculum; later stages are not foretold"


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g}"
