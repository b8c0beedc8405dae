"""Numbers of a run's steps, from `metrics.jsonl`."""

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.pipelines.report.run.lines import columns, records
from reelweave.pipelines.report.run.series import Bins, Series
from reelweave.train.loop.logs.record import METRICS

PARTS = ("data", "text", "vae", "forward", "backward", "wait", "sync", "optimizer", "other")
"""Parts of a step in its order, each a field with "_s" behind it."""

MOST_RANKS = 1 << 20
_MOST_PARTS = 24  # terms of a loss
_KEPT = 1000  # steps at either end of which windows are averaged
_LOOKED_AT = 50  # first lines that name the terms of the loss
_FIELDS = (
    "loss",
    "lr",
    "grad_norm",
    "samples",
    "tokens",
    "flops",
    "mfu",
    "step_s",
    *(f"{part}_s" for part in PARTS),
    "pause_s",
    "wait_max_s",
    "peak_gib",
    "samples_per_s",
    "tokens_per_s",
)


@dataclass(frozen=True)
class RankWait:
    """Waits of other ranks for one rank.

    Attributes:
        rank: number of the rank.
        steps: steps in which it came last.
        waited_s: seconds that the mean rank waited for it in these.
        share: the same as a share of the run's steps.
    """

    rank: int
    steps: int
    waited_s: float
    share: float


@dataclass(frozen=True)
class StepMeans:
    """Means over some steps; None where nothing was recorded.

    Attributes:
        steps: number of steps.
        loss: mean loss.
        step_s: seconds of a step.
        mfu: model FLOPs utilization over their time.
        flops_per_s: floating-point operations per second.
        tokens_per_s: tokens per second.
        samples_per_s: samples per second.
        wait_share: share of their time in which the mean rank waited.
        parts: seconds of each part of a step.
        pause_s: seconds between steps.
    """

    steps: int
    loss: float | None
    step_s: float | None
    mfu: float | None
    flops_per_s: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    wait_share: float | None
    parts: dict[str, float]
    pause_s: float | None


@dataclass(frozen=True)
class Steps:
    """Metrics of all steps of a run.

    Attributes:
        recorded: lines that were read.
        first: first step; None without any.
        last: last step; None without any.
        unreadable: lines that are no record; of repeated or earlier steps, too.
        skipped: steps whose loss or gradient was not finite, so that the weights stayed.
        last_skipped: the last of these.
        seconds: seconds of all steps, and of the pauses between them.
        whole: means over all steps.
        start: means over the first steps: a tenth of the run, at most 100.
        recent: means over as many last ones.
        usual_flops_per_s: median rate over twentieths of the run, the first and the last left out; None in
            a short run.
        peak_gib: most memory of any rank.
        waits: ranks that others waited for, those that cost most first.
        terms: names of the terms of the loss.
        loss_trend: (step, loss) of the trailing mean over a twentieth of the bins.
        series: curves over the steps; terms of the loss are named "parts/NAME".
    """

    recorded: int
    first: int | None
    last: int | None
    unreadable: int
    skipped: int
    last_skipped: int | None
    seconds: float
    whole: StepMeans
    start: StepMeans
    recent: StepMeans
    usual_flops_per_s: float | None
    peak_gib: float | None
    waits: list[RankWait]
    terms: list[str]
    loss_trend: list[tuple[int, float]]
    series: Series


def read_steps(run: Path) -> Steps:
    """Read a run's metrics; a missing file has no steps."""
    path = run / METRICS
    terms = _terms(path)
    totals = _Totals(terms)
    for table, wrong in columns(path, _schema(terms)):
        totals.add(table, wrong)
    return totals.numbers()


class _Totals:
    """Sums over steps, as pieces of the file come."""

    def __init__(self, terms: list[str]) -> None:
        self._terms = terms
        names = [*_FIELDS, *(f"parts/{term}" for term in terms)]
        self._bins = Bins(names)
        self._sums = _Sums()
        self._head = self._tail = np.zeros((len(_FIELDS), 0))
        self._first: int | None = None
        self._last = self._unreadable = self._skipped = 0
        self._last_skipped: int | None = None
        self._steps_R: NDArray[Any] = np.zeros(0)
        self._waited_R: NDArray[Any] = np.zeros(0)

    def add(self, table: pa.Table, wrong: int) -> None:
        """Add rows; those that do not follow the steps before are counted as unreadable."""
        step_N = _floats(table.column("step"))
        good_N = (step_N >= 1) & (step_N < 1 << 53) & (step_N % 1 == 0)
        # Steps rise within a run: a resumed one removes what it repeats.
        highest_N = np.maximum.accumulate(np.concatenate([[self._last], np.where(good_N, step_N, 0)]))[:-1]
        good_N &= step_N > highest_N
        self._unreadable += wrong + int((~good_N).sum())
        if not good_N.any():
            return
        values_CN = np.stack([_floats(table.column(name))[good_N] for name in _FIELDS])
        parts = table.column("parts").combine_chunks() if self._terms else None
        terms_CN = [_floats(pc.struct_field(parts, [term]))[good_N] for term in self._terms]
        steps = step_N[good_N].astype(np.int64)
        self._bins.add(steps, np.concatenate([values_CN, np.reshape(terms_CN, (-1, len(steps)))]))
        self._first = int(steps[0]) if self._first is None else self._first
        self._last = int(steps[-1])
        self._sums.add(values_CN)
        self._head = np.concatenate([self._head, values_CN[:, : _KEPT - self._head.shape[1]]], axis=1)
        self._tail = np.concatenate([self._tail, values_CN], axis=1)[:, -_KEPT:]
        loss_N, norm_N = values_CN[_FIELDS.index("loss")], values_CN[_FIELDS.index("grad_norm")]
        said_N = table.column("skipped").fill_null(False).to_numpy()[good_N]
        skipped = steps[said_N | np.isnan(loss_N) | np.isnan(norm_N)]
        self._skipped += len(skipped)
        self._last_skipped = int(skipped[-1]) if len(skipped) else self._last_skipped
        self._add_waits(_floats(table.column("slowest_rank"))[good_N], values_CN)

    def numbers(self) -> Steps:
        """Return the numbers of all rows."""
        recorded, series = self._sums.steps, self._bins.series()
        window = max(1, min(100, recorded // 10))
        totals = self._sums.window()
        peaks = [high for high in series.curves["peak_gib"].high if high is not None]
        return Steps(
            recorded=recorded,
            first=self._first,
            last=self._last or None,
            unreadable=self._unreadable,
            skipped=self._skipped,
            last_skipped=self._last_skipped,
            seconds=self._sums.total("step_s") + self._sums.total("pause_s"),
            whole=totals,
            start=_window(self._head[:, :window]),
            recent=_window(self._tail[:, -window:]),
            usual_flops_per_s=_usual_rate(series),
            peak_gib=max(peaks, default=None),
            waits=self._waits(),
            terms=self._terms,
            loss_trend=series.trend("loss"),
            series=series,
        )

    def _add_waits(self, rank_N: NDArray[np.float64], values_CN: NDArray[np.float64]) -> None:
        """Charge the waits of each step to the rank that came last."""
        wait_N = values_CN[_FIELDS.index("wait_s")]
        known_N = (rank_N >= 0) & (rank_N < MOST_RANKS) & (rank_N % 1 == 0) & (wait_N > 0)
        rank_K = rank_N[known_N].astype(np.int64)
        size = max(len(self._steps_R), int(rank_K.max(initial=-1)) + 1)
        count_R = np.bincount(rank_K, minlength=size)
        waited_R = np.bincount(rank_K, weights=wait_N[known_N], minlength=size)
        self._steps_R = count_R + np.pad(self._steps_R, (0, size - len(self._steps_R)))
        self._waited_R = waited_R + np.pad(self._waited_R, (0, size - len(self._waited_R)))

    def _waits(self) -> list[RankWait]:
        seconds = self._sums.total("step_s")
        waits = [
            RankWait(
                rank, int(self._steps_R[rank]), float(waited), float(waited / seconds) if seconds else 0.0
            )
            for rank, waited in enumerate(self._waited_R.tolist())
            if self._steps_R[rank]
        ]
        return sorted(waits, key=lambda wait: (-wait.waited_s, wait.rank))


class _Sums:
    """Sums of columns, and of the times of the rows in which each is known."""

    def __init__(self) -> None:
        self.steps = 0
        self._sum_3C = np.zeros((3, len(_FIELDS)))

    def add(self, values_CN: NDArray[np.float64]) -> None:
        known_CN = np.isfinite(values_CN)
        zeroed_CN = np.where(known_CN, values_CN, 0.0)
        step_s_N = zeroed_CN[_FIELDS.index("step_s")]
        self.steps += values_CN.shape[1]
        self._sum_3C += np.stack(
            [zeroed_CN.sum(1), known_CN.sum(1), (known_CN * step_s_N).sum(1)],
        )
        # A utilization is weighted by the time in which it held.
        mfu = _FIELDS.index("mfu")
        self._sum_3C[0, mfu] += (zeroed_CN[mfu] * step_s_N).sum() - zeroed_CN[mfu].sum()

    def total(self, name: str) -> float:
        """Return the sum of a column."""
        return float(self._sum_3C[0, _FIELDS.index(name)])

    def mean(self, name: str) -> float | None:
        """Return the mean over the rows in which a column is known."""
        total, rows = self._sum_3C[:2, _FIELDS.index(name)]
        return float(total / rows) if rows else None

    def rate(self, name: str) -> float | None:
        """Return a column's sum per second of the steps in which it is known."""
        total, rows, seconds = self._sum_3C[:, _FIELDS.index(name)]
        return float(total / seconds) if rows and seconds > 0 else None

    def window(self) -> StepMeans:
        parts = {part: self.mean(f"{part}_s") for part in PARTS}
        return StepMeans(
            steps=self.steps,
            loss=self.mean("loss"),
            step_s=self.mean("step_s"),
            mfu=self.rate("mfu"),
            flops_per_s=self.rate("flops"),
            tokens_per_s=self.rate("tokens"),
            samples_per_s=self.rate("samples"),
            wait_share=self.rate("wait_s"),
            parts={part: seconds for part, seconds in parts.items() if seconds is not None},
            pause_s=self.mean("pause_s"),
        )


def _window(values_CN: NDArray[np.float64]) -> StepMeans:
    sums = _Sums()
    sums.add(values_CN)
    return sums.window()


def _usual_rate(series: Series) -> float | None:
    """Return the median rate of twentieths of the bins, without the first, of warm-up, and the last."""
    flops, seconds = (series.curves[name].mean for name in ("flops", "step_s"))
    rates = [
        done / spent
        for done, spent in zip(flops, seconds, strict=True)
        if done is not None and spent is not None and spent > 0
    ]
    length = len(rates) // 20
    if length < 2:
        return None
    middle = np.array(rates[length : len(rates) - length])
    return float(np.median([part.mean() for part in np.array_split(middle, 18)]))


def _terms(path: Path) -> list[str]:
    """Return the names of the terms of the loss."""
    terms: dict[str, None] = {}
    for record in islice(records(path), _LOOKED_AT):
        parts = record.get("parts") if record else None
        if isinstance(parts, dict):
            terms |= dict.fromkeys(name for name, value in parts.items() if isinstance(value, int | float))
    return list(terms)[:_MOST_PARTS]


def _schema(terms: list[str]) -> pa.Schema:
    fields: dict[str, Any] = dict.fromkeys(("step", *_FIELDS, "slowest_rank"), pa.float64())
    fields["skipped"] = pa.bool_()
    if terms:
        fields["parts"] = pa.struct([(term, pa.float64()) for term in terms])
    return pa.schema(list(fields.items()))


def _floats(column: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column with NaN for what is absent or not finite."""
    values: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(float)
    return np.where(np.abs(values) < math.inf, values, math.nan)
