"""Recorded steps of a run, and the truncation of its records when it resumes."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from reelweave.loader.base.whole_file import whole_file
from reelweave.train.loop.logs.metrics import StepMetrics
from reelweave.train.loop.logs.record import CHECKPOINTS, LOSSES, METRICS, RANKS, RECONSTRUCTION, VALIDATION
from reelweave.train.measure.step_times import StepTimes

_TIMES, _METRICS = TypeAdapter(StepTimes), TypeAdapter(StepMetrics)
_NO_RECORD = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)


def read_metrics(out: Path, last_step: int) -> Iterator[StepMetrics]:
    """Iterate over recorded steps up to ``last_step``; skips lines truncated by a kill."""
    return (metrics for metrics, _ in _read_recorded(out / METRICS, last_step))


def _read_recorded(path: Path, last_step: int) -> Iterator[tuple[StepMetrics, bytes]]:
    """Yield recorded steps up to ``last_step`` with their lines."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
                times = _TIMES.validate_python(_known_fields(StepTimes, record))
                metrics = _METRICS.validate_python({**_known_fields(StepMetrics, record), "times": times})
                metrics.line("")  # only lines that can be written again are valid
            except _NO_RECORD:
                continue
            if metrics.step <= last_step:
                yield metrics, line.rstrip(b"\n") + b"\n"


def forget_after(out: Path, last_step: int) -> None:
    """Remove lines of later steps, which will be repeated after a resume; all lines if no step is left."""
    with whole_file(out / METRICS) as aside, aside.open("wb") as file:
        file.writelines(line for _, line in _read_recorded(out / METRICS, last_step))
    for path in (out / LOSSES, out / RECONSTRUCTION, out / VALIDATION, out / RANKS, out / CHECKPOINTS):
        if path.exists():
            with whole_file(path) as aside, path.open("rb") as lines, aside.open("wb") as file:
                file.writelines(line for line in lines if last_step and _step(line) <= last_step)


def _known_fields(kind: type[StepMetrics | StepTimes], record: dict[str, Any]) -> dict[str, Any]:
    return {field.name: record[field.name] for field in fields(kind) if field.name in record}


def _step(line: bytes) -> float:
    """Return the step of a line; infinity for a truncated line."""
    try:
        return int(json.loads(line)["step"])
    except _NO_RECORD:
        return math.inf
