"""Waits and memory of ranks as JSON lines, in a file of bounded size."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from reelweave.loader.base.whole_file import whole_file
from reelweave.train.loop.logs.record import RANKS, Record
from reelweave.train.measure.rank_waits import RankWaits

MAX_BYTES = 64 << 20
"""Size beyond which pairs of lines become one."""


@dataclass(frozen=True)
class RankRecord(Record):
    """Waits and memory of ranks [R] over the steps since the record before.

    Attributes:
        steps: number of steps that it covers.
        seconds: seconds of these, without pauses.
        wait_s: seconds that each rank waited for the last one.
        last: steps in which each rank came last.
        peak_gib: peak memory of each rank's GPU; None on a CPU.
    """

    FILE = RANKS

    steps: int
    seconds: float
    wait_s: list[float]
    last: list[int]
    peak_gib: list[float] | None

    @classmethod
    def of(cls, step: int, waits: RankWaits) -> Self:
        """Return the record of waits up to a step, rounded."""
        peaks = waits.peak_gib and [round(peak, 3) for peak in waits.peak_gib]
        wait_s = [round(wait, 4) for wait in waits.wait_s]
        return cls(step, waits.steps, round(waits.seconds, 4), wait_s, waits.last, peaks)

    def line(self, run: str = "") -> str:  # noqa: ARG002 - as `Record` has it
        """Return the line of JSON, without spaces: it names every rank."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":")) + "\n"

    def precedes(self, other: Self) -> bool:
        """Return whether another record of as many ranks begins where this one ends."""
        return len(self.wait_s) == len(other.wait_s) and other.step - other.steps == self.step

    def with_next(self, other: Self) -> "RankRecord":
        """Return one record over the steps of both."""
        return RankRecord(
            other.step,
            self.steps + other.steps,
            round(self.seconds + other.seconds, 4),
            [round(sum(pair), 4) for pair in zip(self.wait_s, other.wait_s, strict=True)],
            [sum(pair) for pair in zip(self.last, other.last, strict=True)],
            list(map(max, self.peak_gib, other.peak_gib)) if self.peak_gib and other.peak_gib else None,
        )


_RECORD = TypeAdapter(RankRecord)


def limit_size(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Make half as many records of a file that became too large, each over twice as many steps.

    Args:
        path: file of the records.
        max_bytes: size of the file beyond which lines are joined.
    """
    if path.stat().st_size > max_bytes:
        with whole_file(path) as aside, path.open("rb") as lines, aside.open("w", encoding="utf-8") as file:
            file.writelines(record.line() for record in _join_pairs(lines))


def _join_pairs(lines: Iterator[bytes]) -> Iterator[RankRecord]:
    """Yield pairs of records as one; those that do not follow each other stay as they are."""
    records = _records(lines)
    for first, second in zip_longest(records, records):
        if second is None:
            yield first
        elif first.precedes(second):
            yield first.with_next(second)
        else:
            yield from (first, second)


def _records(lines: Iterator[bytes]) -> Iterator[RankRecord]:
    """Yield records; lines truncated by a kill are left out."""
    for line in lines:
        try:
            yield _RECORD.validate_json(line)
        except ValidationError:
            continue
