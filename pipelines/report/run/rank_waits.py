"""Waits and memory of every rank over the steps, from `ranks.jsonl`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.pipelines.report.run.lines import number, records
from reelweave.train.loop.logs.record import RANKS

MOST_BINS = 60
"""Maximum number of spans of steps; a longer run has wider ones."""
MOST_SHOWN = 32
"""Ranks whose spans are shown: those that waited least, for which others waited."""

_MOST_RANKS = 1 << 16
_MOST = 1e12  # seconds, or GiB


@dataclass(frozen=True)
class RankRow:
    """Waits and memory of one rank.

    Attributes:
        rank: number of the rank.
        wait_s: seconds that it waited for others.
        wait_share: the same as a share of the time.
        last: steps in which it came last.
        peak_gib: its peak memory; None on a CPU.
        shares: share of the time that it waited in each span; None where none was recorded.
    """

    rank: int
    wait_s: float
    wait_share: float
    last: int
    peak_gib: float | None
    shares: list[float | None]


@dataclass(frozen=True)
class RankTable:
    """Waits of ranks over spans of steps.

    Attributes:
        ranks: number of ranks, since it last changed; 0 without a record.
        steps: steps that were recorded of so many ranks.
        begins: step behind which each span begins.
        ends: last step of each span.
        rows: ranks that waited least first, at most `MOST_SHOWN`.
        least_peak_gib: lowest peak memory of any rank; None on a CPU.
        most_peak_gib: highest.
        unreadable: lines that are no record; those of steps that a line before has, too.
    """

    ranks: int
    steps: int
    begins: list[int]
    ends: list[int]
    rows: list[RankRow]
    least_peak_gib: float | None
    most_peak_gib: float | None
    unreadable: int


@dataclass(frozen=True)
class _Span:
    begin: int
    end: int
    seconds: float
    wait_R: NDArray[np.float64]

    def with_next(self, other: "_Span") -> "_Span":
        return _Span(self.begin, other.end, self.seconds + other.seconds, self.wait_R + other.wait_R)


class _Sums:
    """Sums of ranks [R] by spans of steps."""

    def __init__(self, ranks: int) -> None:
        self.steps, self._width = 0, 1
        self.last_R, self.peak_R = np.zeros(ranks, np.int64), np.zeros(ranks)
        self.spans: list[_Span] = []

    def add(self, span: _Span, last_R: NDArray[np.int64]) -> None:
        """Add what was recorded behind all that was added before."""
        self.steps += span.end - span.begin
        self.last_R += last_R
        self._append(span)
        while len(self.spans) > MOST_BINS:
            self._width *= 2
            before, self.spans = self.spans, []
            for older_span in before:
                self._append(older_span)

    def _append(self, span: _Span) -> None:
        same = self.spans and (self.spans[-1].end - 1) // self._width == (span.end - 1) // self._width
        self.spans.append(self.spans.pop().with_next(span) if same else span)


def read_rank_waits(run: Path) -> RankTable:
    """Read the waits of a run's ranks; a missing file has none. With another number of ranks they begin anew."""
    sums, last_step, unreadable = _Sums(0), 0, 0
    for record in records(run / RANKS):
        line = None if record is None else _line(record)
        if line is None or line[0] - line[1] < last_step:
            unreadable += 1
            continue
        last_step, steps, seconds, wait_R, last_R, peak_R = line
        if len(wait_R) != len(sums.last_R):
            sums = _Sums(len(wait_R))
        sums.add(_Span(last_step - steps, last_step, seconds, wait_R), last_R)
        if peak_R is not None:
            sums.peak_R = np.maximum(sums.peak_R, peak_R)
    return _table(sums, unreadable)


def _table(sums: _Sums, unreadable: int) -> RankTable:
    peaks = sums.peak_R.tolist() if sums.peak_R.any() else []
    if not sums.spans:
        return RankTable(0, 0, [], [], [], None, None, unreadable)
    seconds_B = np.array([span.seconds for span in sums.spans])
    wait_BR = np.stack([span.wait_R for span in sums.spans])
    whole_R = wait_BR.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share_BR = wait_BR / seconds_B[:, None]
    rows = [
        RankRow(
            rank,
            float(whole_R[rank]),
            float(whole_R[rank] / seconds_B.sum()) if seconds_B.sum() else 0.0,
            int(sums.last_R[rank]),
            peaks[rank] if peaks else None,
            [float(share) if np.isfinite(share) else None for share in share_BR[:, rank]],
        )
        for rank in np.argsort(whole_R, kind="stable")[:MOST_SHOWN].tolist()
    ]
    begins, ends = [span.begin for span in sums.spans], [span.end for span in sums.spans]
    lowest, highest = (min(peaks), max(peaks)) if peaks else (None, None)
    return RankTable(len(whole_R), sums.steps, begins, ends, rows, lowest, highest, unreadable)


def _line(
    record: dict[str, Any],
) -> tuple[int, int, float, NDArray[np.float64], NDArray[np.int64], NDArray[np.float64] | None] | None:
    """Return step, steps, seconds, waits, counts of coming last, and peaks; None for what is no record."""
    step, steps, seconds = (number(record.get(name)) for name in ("step", "steps", "seconds"))
    wait_R, last_R, peak_R = (_numbers(record.get(name)) for name in ("wait_s", "last", "peak_gib"))
    if step is None or steps is None or seconds is None or wait_R is None or last_R is None:
        return None
    is_whole = step == int(step) and steps == int(steps) and 1 <= steps <= step < 1 << 53
    if not is_whole or not 0 <= seconds <= _MOST or (last_R > steps).any():
        return None
    if len(last_R) != len(wait_R) or (peak_R is not None and len(peak_R) != len(wait_R)):
        return None
    return int(step), int(steps), seconds, wait_R, last_R.astype(np.int64), peak_R


def _numbers(listed: object) -> NDArray[np.float64] | None:
    """Return a list of numbers of 0 and above; None for anything else."""
    if not isinstance(listed, list) or not 0 < len(listed) <= _MOST_RANKS:
        return None
    values = [number(value) for value in listed]
    if any(value is None or not 0 <= value <= _MOST for value in values):
        return None
    return np.array(values, np.float64)
