"""Metrics of a step and of a run."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from reelweave.train.loop.logs.record import METRICS, Record
from reelweave.train.measure.step_times import StepTimes

WINDOW = 10  # maximum number of steps averaged at the start and at the end of a run


@dataclass(frozen=True)
class StepMetrics(Record):
    """Metrics of one optimizer step over all ranks.

    Attributes:
        loss: mean over the step's samples; None if not finite.
        lr: learning rate.
        grad_norm: norm of the whole gradient before clipping; None if not finite.
        skipped: True if the update was skipped because of a non-finite loss or gradient.
        times: time by part of the step.
        samples: number of samples that the step was made of; 0 where none could be read.
        tokens: number of text and video tokens in the step.
        flops: FLOPs of the denoiser, forward and backward (`reelweave.train.measure.flops`); None in older runs.
        mfu: model FLOPs utilization over the whole step; None without a known peak.
        read_retries: requests to storage that the ranks' streams sent again; None in older runs, as are the next two.
        cache_hits: samples that they read from the disk cache.
        cache_misses: samples that the disk cache did not have.
        parts: loss terms and other values by name; None for a single-term loss.
    """

    FILE = METRICS

    loss: float | None
    lr: float
    grad_norm: float | None
    skipped: bool
    times: StepTimes
    samples: int
    tokens: int
    flops: int | None = None
    mfu: float | None = None
    read_retries: int | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    parts: Mapping[str, float] | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all ranks."""
        return self.samples / self.times.step_s

    @property
    def tokens_per_s(self) -> float:
        """Text and video tokens per second over all ranks."""
        return self.tokens / self.times.step_s

    def line(self, run: str) -> str:
        """Return the line of JSON with the id of its run, and the times beside other numbers."""
        values = asdict(self)
        times = values.pop("times")
        rates = {"samples_per_s": self.samples_per_s, "tokens_per_s": self.tokens_per_s}
        return json.dumps({"run": run, **values, **times, **rates}, allow_nan=False) + "\n"

    def scalars(self) -> dict[str, float]:
        times = self.times
        scalars = {
            "train/loss": self.loss,
            "train/lr": self.lr,
            "train/grad_norm": self.grad_norm,
            "train/samples_per_s": self.samples_per_s,
            "train/tokens_per_s": self.tokens_per_s,
            "train/mfu": self.mfu,
            "train/peak_gib": times.peak_gib,
        }
        scalars |= {f"time/{name}": value for name, value in asdict(times).items() if name.endswith("_s")}
        scalars |= {f"share/{name}": share for name, share in times.shares.items()}
        scalars |= {f"parts/{name}": value for name, value in (self.parts or {}).items()}
        scalars |= {"share/wait_max": times.wait_max_share, "train/slowest_rank": times.slowest_rank}
        return {name: value for name, value in scalars.items() if value is not None}


class RunSummary:
    """First and last losses and throughput of a run, in bounded memory."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._losses = 0
        self._samples = 0
        self._seconds = 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Add one step; a skipped one, and one without samples, only counts for the throughput."""
        self._samples += metrics.samples
        self._seconds += metrics.times.step_s
        if metrics.loss is not None and not metrics.skipped and metrics.samples:
            if len(self._first) < WINDOW:
                self._first.append(metrics.loss)
            self._last.append(metrics.loss)
            self._losses += 1

    @property
    def window(self) -> int:
        """Number of steps at either end that are averaged: ten, or half of a shorter run; 0 without a step."""
        return min(WINDOW, (self._losses + 1) // 2)

    @property
    def first_loss(self) -> float | None:
        """Mean loss of the first `window` steps; None without a step."""
        return sum(self._first[: self.window]) / self.window if self._losses else None

    @property
    def last_loss(self) -> float | None:
        """Mean loss of the last `window` steps; None without a step."""
        return sum(list(self._last)[-self.window :]) / self.window if self._losses else None

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all steps."""
        return self._samples / self._seconds if self._seconds else 0.0
