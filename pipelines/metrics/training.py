"""Numbers of a training run, from its folder."""

from pathlib import Path
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.pipelines.metrics.followed import FollowedRecords
from reelweave.pipelines.metrics.sample import Metric, MetricSample
from reelweave.pipelines.report.run.checkpoints import last_checkpoint
from reelweave.pipelines.report.run.configuration import read_configuration
from reelweave.pipelines.report.run.lines import number
from reelweave.pipelines.report.run.metrics import PARTS
from reelweave.pipelines.report.run.numbers import is_run
from reelweave.train.loop.logs.record import BAD_SAMPLES, CHECKPOINTS, LOSSES, METRICS, RANKS

_RUN = ("run",)
STEP = Metric("reelweave_train_step", "Finished optimizer steps.", _RUN)
PLANNED_STEPS = Metric(
    "reelweave_train_planned_steps", "Optimizer steps that the configuration asks for.", _RUN
)
LOGGED = Metric(
    "reelweave_train_logged_timestamp_seconds", "Time of the newest step's line, or of the run's begin.", _RUN
)
SKIPPED = Metric(
    "reelweave_train_skipped_steps", "Steps without an update, for a loss or gradient not finite.", _RUN, True
)
STEPS = Metric("reelweave_train_steps", "Recorded optimizer steps.", _RUN, True)
SAMPLES = Metric("reelweave_train_samples", "Samples trained on.", _RUN, True)
TOKENS = Metric("reelweave_train_tokens", "Text and video tokens trained on.", _RUN, True)
FLOPS = Metric("reelweave_train_flops", "Floating-point operations of the denoiser.", _RUN, True)
SPENT = Metric(
    "reelweave_train_seconds", "Seconds by part of a step, mean over the ranks.", ("run", "part"), True
)
STEP_SECONDS = Metric("reelweave_step_seconds", "Seconds of the newest step by part.", ("run", "part"))
LOSS = Metric("reelweave_train_loss", "Loss of the newest step.", _RUN)
HELD_OUT = Metric("reelweave_train_held_out_loss", "Newest loss of held-out clips.", _RUN)
LEARNING_RATE = Metric("reelweave_train_learning_rate", "Learning rate of the newest step.", _RUN)
GRADIENT_NORM = Metric("reelweave_train_gradient_norm", "Norm of the gradient before clipping.", _RUN)
MFU = Metric("reelweave_train_mfu_ratio", "Model FLOPs utilization of the newest step.", _RUN)
PEAK = Metric("reelweave_train_peak_memory_bytes", "Peak memory of the rank with most.", _RUN)
SLOWEST = Metric("reelweave_train_slowest_rank", "Rank that came last in the newest step.", _RUN)
RANK_WAIT = Metric(
    "reelweave_rank_wait_seconds",
    "Seconds a step that a rank waited for the last one, over the newest line of ranks.jsonl.",
    ("run", "rank"),
)
BAD = Metric("reelweave_train_bad_samples", "Samples that were replaced.", _RUN, True)
RETRIES = Metric(
    "reelweave_train_read_retries", "Requests to storage that reading samples sent again.", _RUN, True
)
CACHE_HITS = Metric("reelweave_train_cache_hits", "Samples read from the disk cache.", _RUN, True)
CACHE_MISSES = Metric("reelweave_train_cache_misses", "Samples that the disk cache did not have.", _RUN, True)
CHECKPOINT_STEP = Metric("reelweave_checkpoint_step", "Step of the newest whole checkpoint.", _RUN)
CHECKPOINT_TIME = Metric("reelweave_checkpoint_timestamp_seconds", "Time at which it became visible.", _RUN)
TRAINING = (
    STEP, PLANNED_STEPS, LOGGED, SKIPPED, STEPS, SAMPLES, TOKENS, FLOPS, SPENT, STEP_SECONDS, LOSS, HELD_OUT,
    LEARNING_RATE, GRADIENT_NORM, MFU, PEAK, SLOWEST, RANK_WAIT, BAD, RETRIES,
    CACHE_HITS, CACHE_MISSES, CHECKPOINT_STEP, CHECKPOINT_TIME,
)  # fmt: skip

_NEWEST = {
    "step": STEP,
    "loss": LOSS,
    "lr": LEARNING_RATE,
    "grad_norm": GRADIENT_NORM,
    "mfu": MFU,
    "slowest_rank": SLOWEST,
}
_SUMMED = {
    "samples": SAMPLES,
    "tokens": TOKENS,
    "flops": FLOPS,
    "read_retries": RETRIES,
    "cache_hits": CACHE_HITS,
    "cache_misses": CACHE_MISSES,
}
_ALL_PARTS = (*PARTS, "pause")


class TrainingRun:
    """A training run, live or ended; each of its lines is read once.

    Args:
        folder: folder of the run.
        name: its name in labels.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._steps, self._ranks, self._losses, self._bad, self._saved = (
            FollowedRecords(folder / file) for file in (METRICS, RANKS, LOSSES, BAD_SAMPLES, CHECKPOINTS)
        )
        self._checkpoint: tuple[int, float] | None = None
        self._newest: dict[str, Any] = {}
        self._sums: dict[tuple[Metric, str], float] = {}
        self._passes = 0
        self._wait_R: list[float] = []
        self._held_out: float | None = None
        self._bad_samples = 0

    def samples(self) -> list[MetricSample]:
        """Return the numbers of the run's files as they are now."""
        if not is_run(self._folder):
            raise UsageError(f"{self._folder} is no training run any more")
        self._read()
        configuration = read_configuration(self._folder)
        values: dict[Metric, float | None] = {
            **{metric: number(self._newest.get(key)) for key, metric in _NEWEST.items()},
            PLANNED_STEPS: configuration.total_steps,
            HELD_OUT: self._held_out,
            BAD: self._bad_samples,
        }
        if (peak_gib := number(self._newest.get("peak_gib"))) is not None:
            values[PEAK] = peak_gib * 2**30
        if self._newest:
            values[LOGGED] = (self._folder / METRICS).stat().st_mtime
        elif configuration.file:  # a run may also hang before its first step
            values[STEP], values[LOGGED] = 0, (self._folder / configuration.file).stat().st_mtime
        # A run tells of checkpoints wherever they are; runs of older versions have those in their folder alone.
        if (checkpoint := last_checkpoint(self._folder) or self._checkpoint) is not None:
            values[CHECKPOINT_STEP], values[CHECKPOINT_TIME] = checkpoint
        samples = [
            MetricSample(metric, (self.name,), value) for metric, value in values.items() if value is not None
        ]
        samples += [
            MetricSample(metric, (self.name, part) if part else (self.name,), value)
            for (metric, part), value in self._sums.items()
        ]
        parts = {part: number(self._newest.get(f"{part}_s")) for part in _ALL_PARTS}
        samples += [
            MetricSample(STEP_SECONDS, (self.name, part), s) for part, s in parts.items() if s is not None
        ]
        samples += [MetricSample(RANK_WAIT, (self.name, str(rank)), s) for rank, s in enumerate(self._wait_R)]
        return samples

    def _read(self) -> None:
        """Read what the run has written since the last time."""
        for record in self._steps.new():
            if self._steps.passes != self._passes:
                self._passes, self._sums = self._steps.passes, {}
            self._add(record)
        for record in self._ranks.new():
            self._wait_R = _waits(record)
        for record in self._losses.new():
            totals = record.get("whole")
            if record.get("of") == "held_out" and isinstance(totals, dict):
                self._held_out = number(totals.get("loss"))
        for record in self._saved.new():
            step, at = number(record.get("step")), number(record.get("at"))
            if step is not None and at is not None:
                self._checkpoint = int(step), at
        passes, count = self._bad.passes, sum(1 for _ in self._bad.new())
        self._bad_samples = count + (self._bad_samples if self._bad.passes == passes else 0)

    def _add(self, record: dict[str, Any]) -> None:
        self._newest = record
        self._grow(STEPS, "", 1.0)
        self._grow(SKIPPED, "", float(record.get("skipped") is True))
        for key, metric in _SUMMED.items():
            self._grow(metric, "", number(record.get(key)))
        for part in _ALL_PARTS:
            self._grow(SPENT, part, number(record.get(f"{part}_s")))

    def _grow(self, metric: Metric, part: str, by: float | None) -> None:
        if by is not None and by >= 0:
            self._sums[metric, part] = self._sums.get((metric, part), 0.0) + by


def _waits(record: dict[str, Any]) -> list[float]:
    """Return the mean wait of each rank in a step; none for what is no such record."""
    steps, waits = number(record.get("steps")), record.get("wait_s")
    if not steps or steps < 0 or not isinstance(waits, list):
        return []
    waits_s = [number(wait) for wait in waits]
    return [wait / steps for wait in waits_s if wait is not None] if None not in waits_s else []
