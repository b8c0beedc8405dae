"""Where a run's numbers go: metrics, losses and bad samples as JSON lines, TensorBoard events, the console (stderr)."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console

from loader.batch import BadSample
from train.breakdown import Breakdown
from train.config import LogConfig
from train.metrics import StepMetrics, Summary

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FILE, LOSSES, BAD_SAMPLES = "metrics.jsonl", "losses.jsonl", "bad_samples.jsonl"
RECONSTRUCTION = "reconstruction.jsonl"


class MetricLog:
    """Records the steps of a run in its folder, going on after ``start_step``.

    Lines of later steps, left by a run that was killed after its last checkpoint, are removed, so that no
    step appears twice.

    Args:
        out: folder of the run; it exists.
        config: what is told.
        start_step: the steps already done.
        total_steps: the steps of the whole run.
        writes: true on the one rank that records; the others only keep the summary.

    Attributes:
        summary: of the whole run, the steps before ``start_step`` included.
    """

    def __init__(self, out: Path, config: LogConfig, start_step: int, total_steps: int, writes: bool) -> None:
        self.summary = Summary()
        self._out = out
        self._config = config
        self._total_steps = total_steps
        self._writes = writes
        self._began = (time.monotonic(), start_step)
        for metrics in read_metrics(out, start_step):
            self.summary.add(metrics)
        if not writes:
            return
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        _truncate(out, start_step)
        for name in (LOSSES, RECONSTRUCTION):
            _truncate_lines(out / name, start_step)
        self._file = (out / FILE).open("a", encoding="utf-8")
        self._events = _open_events(out, start_step) if config.tensorboard else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writes:
            self._file.close()
            if self._events:
                self._events.close()

    def say(self, message: str) -> None:
        """Puts one line on the console."""
        if self._writes:
            self._console.print(message, markup=False)

    def bad_samples(self, samples: Sequence[BadSample]) -> None:
        """Adds samples that others stood in for to ``bad_samples.jsonl``; on every rank."""
        if samples:
            with (self._out / BAD_SAMPLES).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)

    def add(self, metrics: StepMetrics) -> None:
        """Records one step."""
        self.summary.add(metrics)
        if not self._writes:
            return
        self._file.write(_line(metrics))
        self._file.flush()
        if self._events:
            for name in (
                "loss",
                "lr",
                "grad_norm",
                "samples_per_s",
                "tokens_per_s",
                "step_s",
                "data_s",
                "mfu",
            ):
                if (value := getattr(metrics, name)) is not None:
                    self._events.add_scalar(f"train/{name}", value, metrics.step)
            for name, value in (metrics.parts or {}).items():
                self._events.add_scalar(f"parts/{name}", value, metrics.step)
        if metrics.skipped or metrics.step % self._config.every_steps == 0:
            self.say(self._describe(metrics))

    def add_losses(self, step: int, of: Literal["train", "held_out"], found: Breakdown) -> None:
        """Adds losses by quantile and bucket to ``losses.jsonl``."""
        if not self._writes:
            return
        with (self._out / LOSSES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "of": of, **asdict(found)}, allow_nan=False) + "\n")
        if of == "held_out" and found.whole.loss is not None:
            self.say(f"step {step}: held-out loss {found.whole.loss:.4f} over {found.whole.samples} samples")
        if self._events:
            parts = {"loss": found.whole}
            parts |= {f"quantile/{name}": part for name, part in found.by_quantile.items()}
            parts |= {f"bucket/{name}": part for name, part in found.by_bucket.items()}
            for name, part in parts.items():
                if part.loss is not None:
                    self._events.add_scalar(f"losses_{of}/{name}", part.loss, step)

    def add_reconstruction(self, step: int, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds measures of how clips come back to ``reconstruction.jsonl``.

        Args:
            step: behind which they were taken.
            found: of each measure its values by name; single numbers go to TensorBoard, too.
        """
        if not self._writes:
            return
        with (self._out / RECONSTRUCTION).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **found}, allow_nan=False) + "\n")
        if self._events:
            for measure, values in found.items():
                for name, value in values.items():
                    if isinstance(value, float):
                        self._events.add_scalar(f"{measure}/{name}", value, step)

    def _describe(self, metrics: StepMetrics) -> str:
        if metrics.skipped or metrics.loss is None or metrics.grad_norm is None:
            return f"step {metrics.step}/{self._total_steps}  loss or gradient not finite: weights left alone"
        began, start_step = self._began
        step_s = (time.monotonic() - began) / (metrics.step - start_step)
        mfu = "" if metrics.mfu is None else f"MFU {metrics.mfu:.1%}  "
        left = timedelta(seconds=round(step_s * (self._total_steps - metrics.step)))
        return (
            f"step {metrics.step}/{self._total_steps}  loss {metrics.loss:.4f}  lr {metrics.lr:.2e}  "
            f"grad {metrics.grad_norm:.2f}  {metrics.step_s:.2f} s (data {metrics.data_s:.2f})  "
            f"{metrics.samples_per_s:.1f} samples/s  {metrics.tokens_per_s:,.0f} tokens/s  {mfu}left {left}"
        )


def read_metrics(out: Path, last_step: int) -> Iterator[StepMetrics]:
    """The recorded steps up to ``last_step``, in order; a line cut short by a kill is passed over."""
    path = out / FILE
    if not path.exists():
        return
    names = [field.name for field in fields(StepMetrics)]
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                record = json.loads(line)
                metrics = StepMetrics(**{name: record[name] for name in names if name in record})
            except (ValueError, KeyError, TypeError):
                continue
            if metrics.step <= last_step:
                yield metrics


def _truncate(out: Path, last_step: int) -> None:
    aside = out / f".{FILE}"
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(map(_line, read_metrics(out, last_step)))
    aside.replace(out / FILE)


def _truncate_lines(path: Path, last_step: int) -> None:
    aside = path.with_name(f".{path.name}")
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines, aside.open("w", encoding="utf-8") as file:
        file.writelines(line for line in lines if _step(line) <= last_step)
    aside.replace(path)


def _step(line: str) -> float:
    """The step of a line; of one cut short by a kill, never."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _line(metrics: StepMetrics) -> str:
    rates = {"samples_per_s": metrics.samples_per_s, "tokens_per_s": metrics.tokens_per_s}
    return json.dumps({**asdict(metrics), **rates}, allow_nan=False) + "\n"


def _open_events(out: Path, start_step: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter  # takes seconds, and not every run wants it

    return SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1)
