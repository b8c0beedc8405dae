"""The numbers of a step, and those of a run."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from train.measure.step_times import StepTimes

WINDOW = 10  # steps averaged at the start and at the end of a run, at most


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step, over all ranks.

    Attributes:
        step: optimizer steps done, this one included.
        loss: mean over the step's samples; None when it was not finite.
        lr: learning rate.
        grad_norm: of the whole gradient before clipping; None when it was not finite.
        skipped: the weights were left as they were, because loss or gradient was not finite.
        times: where its time went.
        samples: samples of the step.
        tokens: text and video tokens of the step.
        flops: operations of the denoiser on them, forward and backward (`train.measure.flops`); None in older runs.
        mfu: share of the devices' peak that these come to over the whole step; None where no peak is known.
        parts: what the loss is made of, and what else is told, by name; None where the loss has one term.
    """

    step: int
    loss: float | None
    lr: float
    grad_norm: float | None
    skipped: bool
    times: StepTimes
    samples: int
    tokens: int
    flops: int | None = None
    mfu: float | None = None
    parts: Mapping[str, float] | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all ranks."""
        return self.samples / self.times.step_s

    @property
    def tokens_per_s(self) -> float:
        """Text and video tokens per second over all ranks."""
        return self.tokens / self.times.step_s


class Summary:
    """The first and last losses and the throughput of a run, in bounded memory."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._losses = 0
        self._samples = 0
        self._seconds = 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Counts one step; skipped ones count in the throughput only."""
        self._samples += metrics.samples
        self._seconds += metrics.times.step_s
        if metrics.loss is not None and not metrics.skipped:
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
