"""Log of a run: metrics, losses and bad samples as JSON lines, scalars, the console (stderr)."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from reelweave.loader.base.printable import printable
from reelweave.loader.batch import BadSample
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs.breakdown import BINS, Breakdown
from reelweave.train.loop.logs.metrics import RunSummary, StepMetrics
from reelweave.train.loop.logs.rank_records import append_ranks
from reelweave.train.loop.logs.records import (
    BAD_SAMPLES,
    CHECKPOINTS,
    LOSSES,
    METRICS,
    RANKS,
    RECONSTRUCTION,
    VALIDATION,
    forget_after,
    metrics_line,
    read_metrics,
)
from reelweave.train.loop.logs.run_id import run_id
from reelweave.train.loop.logs.scalars import Scalars
from reelweave.train.measure.rank_waits import RankWaits
from reelweave.train.measure.step_times import StepTimes

_TOLD_SHARE = 0.01  # smaller parts of a step are omitted on the console


class MetricLog:
    """Writer of a run's metrics in its folder, from ``start_step`` on.

    Lines of later steps, left by a run that was killed after its last checkpoint, are removed, so that no step
    appears twice.

    Args:
        out: existing folder of the run.
        config: configuration of the log.
        start_step: number of finished steps.
        total_steps: number of steps of the whole run.
        writes: True on the one rank that writes; the others only update the summary.
        scalars: scalar writers, closed with the log.

    Attributes:
        summary: summary of the whole run, including steps before ``start_step``.
    """

    def __init__(
        self,
        out: Path,
        config: LogConfig,
        start_step: int,
        total_steps: int,
        writes: bool,
        scalars: Sequence[Scalars] = (),
    ) -> None:
        self.summary = RunSummary()
        self._out = out
        self._config = config
        self._total_steps = total_steps
        self._writes = writes
        self._scalars = scalars
        self._began = (time.monotonic(), start_step)
        self._checkpoint: int | None = None
        for metrics in read_metrics(out, start_step):
            self.summary.add(metrics)
        if not writes:
            return
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        forget_after(out, start_step)
        self._run = run_id(out)
        self._file = (out / METRICS).open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writes:
            self._file.close()
        for scalars in self._scalars:
            scalars.close(failed=kind is not None)

    def say(self, message: str) -> None:
        """Print one line on the console."""
        if self._writes:
            self._console.print(printable(message), markup=False)

    def bad_samples(self, samples: Sequence[BadSample]) -> None:
        """Append replaced samples to ``bad_samples.jsonl``; on every rank."""
        if samples:
            with (self._out / BAD_SAMPLES).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)

    def add(self, metrics: StepMetrics) -> None:
        """Log the metrics of one step."""
        self.summary.add(metrics)
        if not self._writes:
            return
        self._file.write(metrics_line(metrics, self._run))
        self._file.flush()
        self._show(_scalars(metrics), metrics.step)
        if metrics.skipped or metrics.step % self._config.every_steps == 0:
            self.say(self._describe(metrics))

    def add_ranks(self, step: int, waits: RankWaits) -> None:
        """Append waits and memory of every rank to ``ranks.jsonl``; nothing for one rank.

        Args:
            step: number of finished steps.
            waits: those since the last line.
        """
        if not self._writes or len(waits.wait_s) == 1:
            return
        append_ranks(self._out / RANKS, step, waits)

    def add_checkpoint(self, step: int | None) -> None:
        """Append the step of the newest whole checkpoint and the time to ``checkpoints.jsonl``, if it is a new one."""
        if not self._writes or step == self._checkpoint:
            return
        self._checkpoint = step
        with (self._out / CHECKPOINTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "at": time.time()}) + "\n")

    def add_losses(self, step: int, of: Literal["train", "held_out"], breakdown: Breakdown) -> None:
        """Append losses by quantile and bucket to ``losses.jsonl``."""
        if not self._writes:
            return
        with (self._out / LOSSES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "of": of, **asdict(breakdown)}, allow_nan=False) + "\n")
        if of == "held_out" and breakdown.whole.loss is not None:
            clips = breakdown.whole.samples // BINS
            self.say(
                f"step {step}: held-out loss {breakdown.whole.loss:.4f} over {clips} clips, each at {BINS} times"
            )
        parts = {"loss": breakdown.whole}
        parts |= {f"quantile/{name}": part for name, part in breakdown.by_quantile.items()}
        parts |= {f"bucket/{name}": part for name, part in breakdown.by_bucket.items()}
        losses = {name: part.loss for name, part in parts.items()}
        self._show({f"losses_{of}/{name}": loss for name, loss in losses.items() if loss is not None}, step)

    def add_reconstruction(self, step: int, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        """Append reconstruction metrics to ``reconstruction.jsonl``.

        Args:
            step: number of finished steps.
            metrics: values by name of each metric; single numbers are also logged as scalars.
        """
        if not self._writes:
            return
        with (self._out / RECONSTRUCTION).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}, allow_nan=False) + "\n")
        for measure, values in metrics.items():
            single = {name: value for name, value in values.items() if isinstance(value, float)}
            self._show({f"{measure}/{name}": value for name, value in single.items()}, step)

    def add_validation(
        self, step: int, record: Mapping[str, Any], pictures: Mapping[str, NDArray[np.uint8]]
    ) -> None:
        """Append what became of validation videos to ``validation.jsonl``, and show pictures of them.

        Args:
            step: number of finished steps.
            record: JSON values by name; single numbers are also logged as scalars.
            pictures: RGB pictures [height, width, 3] by name.
        """
        if not self._writes:
            return
        with (self._out / VALIDATION).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **record}, allow_nan=False) + "\n")
        self._show({f"validation/{name}": x for name, x in record.items() if isinstance(x, float)}, step)
        for writer in self._scalars:
            writer.add_pictures({f"validation/{name}": picture for name, picture in pictures.items()}, step)

    def _show(self, scalars: dict[str, float], step: int) -> None:
        for writer in self._scalars:
            writer.add(scalars, step)

    def _describe(self, metrics: StepMetrics) -> str:
        if metrics.skipped or metrics.loss is None or metrics.grad_norm is None:
            return f"step {metrics.step}/{self._total_steps}  loss or gradient not finite: weights left alone"
        began, start_step = self._began
        step_s = (time.monotonic() - began) / (metrics.step - start_step)
        mfu = "" if metrics.mfu is None else f"MFU {metrics.mfu:.1%}  "
        remaining = timedelta(seconds=round(step_s * (self._total_steps - metrics.step)))
        return (
            f"step {metrics.step}/{self._total_steps}  loss {metrics.loss:.4f}  lr {metrics.lr:.2e}  "
            f"grad {metrics.grad_norm:.2f}  {metrics.times.step_s:.2f} s ({_split(metrics.times)})  "
            f"{metrics.samples_per_s:.1f} samples/s  {metrics.tokens_per_s:,.0f} tokens/s  {mfu}left {remaining}"
        )


def _scalars(metrics: StepMetrics) -> dict[str, float]:
    times = metrics.times
    scalars = {
        "train/loss": metrics.loss,
        "train/lr": metrics.lr,
        "train/grad_norm": metrics.grad_norm,
        "train/samples_per_s": metrics.samples_per_s,
        "train/tokens_per_s": metrics.tokens_per_s,
        "train/mfu": metrics.mfu,
        "train/peak_gib": times.peak_gib,
    }
    scalars |= {f"time/{name}": value for name, value in asdict(times).items() if name.endswith("_s")}
    scalars |= {f"share/{name}": share for name, share in times.shares.items()}
    scalars |= {f"parts/{name}": value for name, value in (metrics.parts or {}).items()}
    scalars |= {"share/wait_max": times.wait_max_share, "train/slowest_rank": times.slowest_rank}
    return {name: value for name, value in scalars.items() if value is not None}


def _split(times: StepTimes) -> str:
    """Format the parts of a step's time."""
    parts = {name: f"{name} {share:.0%}" for name, share in times.shares.items() if share >= _TOLD_SHARE}
    if "wait" in parts:
        parts["wait"] += f" for rank {times.slowest_rank}"
    return ", ".join(parts.values())
