"""Console of a run (stderr): lines of steps and of held-out losses, and what else is to say."""

import time
from datetime import timedelta

from rich.console import Console

from reelweave.loader.base.printable import printable
from reelweave.train.loop.logs.breakdown import BINS, LossRecord
from reelweave.train.loop.logs.metrics import StepMetrics
from reelweave.train.loop.logs.record import Record
from reelweave.train.measure.step_times import StepTimes

_SILENT_S = 30.0
"""Seconds after which a step has a line, whatever its number."""
_SHOWN_SHARE = 0.01  # smaller parts of a step are omitted


class ConsoleReader:
    """Reader of records for people.

    Args:
        every_steps: steps between lines. A skipped step always has one, the first and the last step have, and one that
            ends half a minute after the last line.
        start_step: number of finished steps.
        total_steps: number of steps of the whole run.
    """

    def __init__(self, every_steps: int, start_step: int, total_steps: int) -> None:
        self._every_steps, self._total_steps = every_steps, total_steps
        self._began = (time.monotonic(), start_step)
        self._due = float("-inf")
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """Print a line, without markup or control characters."""
        self._console.print(printable(message), markup=False)

    def read(self, record: Record) -> None:
        if isinstance(record, StepMetrics):
            is_counted = record.step % self._every_steps == 0 or record.step == self._total_steps
            if record.skipped or is_counted or time.monotonic() >= self._due:
                self.say(self._describe(record))
                self._due = time.monotonic() + _SILENT_S
        elif isinstance(record, LossRecord) and record.of == "held_out":
            whole = record.breakdown.whole
            if whole.loss is not None:
                clips = whole.samples // BINS
                self.say(
                    f"step {record.step}: held-out loss {whole.loss:.4f} over {clips} clips, each at {BINS} times"
                )

    def close(self, failed: bool) -> None:
        """Leave the console as it is."""

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


def _split(times: StepTimes) -> str:
    """Format the parts of a step's time."""
    parts = {name: f"{name} {share:.0%}" for name, share in times.shares.items() if share >= _SHOWN_SHARE}
    if "wait" in parts:
        parts["wait"] += f" for rank {times.slowest_rank}"
    return ", ".join(parts.values())
