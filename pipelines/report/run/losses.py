"""Losses by bucket and by diffusion time, and of held-out clips, from `losses.jsonl`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelweave.pipelines.report.run.lines import number, records
from reelweave.pipelines.report.run.series import NamedBins, Series
from reelweave.train.loop.logs.record import LOSSES

MOST_BUCKETS = 64


@dataclass(frozen=True)
class LossCurves:
    """Mean losses of groups of samples over steps; the one curve of each series is "loss".

    Attributes:
        whole: all samples; {} without a record, else the one series "all".
        by_bucket: losses by FRAMESxHEIGHTxWIDTH.
        by_time: losses by the middle of a quartile of the diffusion time, 0 to 1.
        left_out: buckets beyond the first 64.
    """

    whole: dict[str, Series]
    by_bucket: dict[str, Series]
    by_time: dict[str, Series]
    left_out: list[str]


@dataclass(frozen=True)
class HeldOut:
    """Held-out loss, and when it was lowest.

    Attributes:
        last: last mean loss.
        last_step: step of it.
        best: lowest mean loss.
        best_step: step of it.
        before: mean loss before the first step; None if it was not measured.
    """

    last: float
    last_step: int
    best: float
    best_step: int
    before: float | None = None


@dataclass(frozen=True)
class AllLosses:
    """Losses of both kinds of clips.

    Attributes:
        train: losses of the clips trained on.
        held_out: losses of held-out clips.
        held_out_best: the last and the lowest held-out loss; None without any.
        unreadable: lines that are no record.
    """

    train: LossCurves
    held_out: LossCurves
    held_out_best: HeldOut | None
    unreadable: int


class _Kind:
    def __init__(self) -> None:
        self.whole, self.buckets, self.times = NamedBins(1), NamedBins(MOST_BUCKETS), NamedBins(MOST_BUCKETS)
        self.best: HeldOut | None = None

    def add(self, step: int, record: dict[str, Any]) -> None:
        for bins, groups in (
            (self.whole, {"all": record.get("whole")}),
            (self.times, record.get("by_quantile")),
            (self.buckets, record.get("by_bucket")),
        ):
            for name, part in groups.items() if isinstance(groups, dict) else ():
                loss = number(part.get("loss")) if isinstance(part, dict) else None
                samples = number(part.get("samples")) if isinstance(part, dict) else None
                if loss is not None:
                    bins.add(str(name), step, loss, max(samples or 1.0, 1e-9))
        totals = record.get("whole")
        loss = number(totals.get("loss")) if isinstance(totals, dict) else None
        if loss is not None and (self.best is None or step > self.best.last_step):
            best = self.best
            lowest = (loss, step) if best is None or loss < best.best else (best.best, best.best_step)
            before = loss if step == 0 else best.before if best else None
            self.best = HeldOut(loss, step, *lowest, before)

    def losses(self) -> LossCurves:
        return LossCurves(
            self.whole.series(),
            _order_series(self.buckets.series()),
            _order_series(self.times.series()),
            sorted(self.buckets.left_out),
        )


def read_losses(run: Path) -> AllLosses:
    """Read a run's losses; a missing file has none."""
    kinds = {"train": _Kind(), "held_out": _Kind()}
    unreadable = 0
    for record in records(run / LOSSES):
        step = None if record is None else number(record.get("step"))
        of = None if record is None else record.get("of")
        if record is None or step is None or not 0 <= step < 1 << 53 or of not in ("train", "held_out"):
            unreadable += 1
            continue
        kinds[of].add(int(step), record)
    train, held_out = kinds["train"], kinds["held_out"]
    return AllLosses(train.losses(), held_out.losses(), held_out.best, unreadable)


def _order_series(series: dict[str, Series]) -> dict[str, Series]:
    """Return series by the numbers in their names: sizes of buckets, quartiles."""
    return dict(sorted(series.items(), key=lambda item: (_numbers(item[0]), item[0])))


def _numbers(name: str) -> list[float]:
    try:
        return [float(part) for part in name.split("x")]
    except ValueError:
        return []
