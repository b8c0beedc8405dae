"""Planned and executed cascades of steps, from the traces in a run's folder."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.strict_json import parse
from reelweave.loader.errors import UsageError
from reelweave.pipelines.report.run.lines import number

FOLDER = "timeline"
MOST_STEPS = 12
_MOST_BYTES = 32 << 20
_MOST_SLICES = 20_000
_STEP = re.compile(r"step-(\d{6,18})\.json")


@dataclass(frozen=True)
class Slice:
    """One cascade on one rank.

    Attributes:
        panel: "planned" or "executed".
        rank: number of the rank.
        label: module, sample and number of ranks, such as "DiT 3 (k=8)".
        module: "text", "VAE" or "DiT".
        start_s: begin, seconds into the step.
        end_s: end.
    """

    panel: str
    rank: int
    label: str
    module: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Timeline of the cascades of one step.

    Attributes:
        step: number of the step.
        picture: path of its page in the run's folder; "" without one.
        ranks: number of ranks.
        cascades: number of cascades executed.
        seconds: seconds until the last cascade ended, by panel.
        idle: share of the ranks' time in no cascade, by panel.
        scaled: true if planned seconds were scaled to the executed ones, because no costs were measured.
        problem: why it cannot be read; "" if it can.
    """

    step: int
    picture: str
    ranks: int
    cascades: int
    seconds: dict[str, float]
    idle: dict[str, float]
    scaled: bool
    problem: str


@dataclass(frozen=True)
class Timelines:
    """Steps of a run that have timelines.

    Attributes:
        steps: all steps that have one.
        shown: the newest of them.
        last: slices of the newest one that can be read.
    """

    steps: list[int]
    shown: list[Timeline]
    last: list[Slice]


def read_timelines(run: Path) -> Timelines:
    """Read a run's timelines of cascades; none where it did not execute any."""
    folder = run / FOLDER
    files = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _STEP.fullmatch(path.name))
    }
    steps = sorted(files)
    shown: list[Timeline] = []
    last: list[Slice] = []
    for step in steps[-MOST_STEPS:]:
        picture = files[step].with_suffix(".html")
        name = f"{FOLDER}/{picture.name}" if picture.is_file() else ""
        try:
            slices, scaled = _slices(files[step])
        except (UsageError, ValueError) as error:
            shown.append(Timeline(step, name, 0, 0, {}, {}, False, str(error)))
            continue
        shown.append(_timeline(step, name, slices, scaled))
        last = slices
    return Timelines(steps, shown, last)


def _timeline(step: int, picture: str, slices: list[Slice], scaled: bool) -> Timeline:
    ranks = len({part.rank for part in slices})
    seconds, idle = {}, {}
    for panel in dict.fromkeys(part.panel for part in slices):
        panel_slices = [part for part in slices if part.panel == panel]
        seconds[panel] = max(part.end_s for part in panel_slices)
        busy = math.fsum(part.end_s - part.start_s for part in panel_slices)
        idle[panel] = max(0.0, 1 - busy / (ranks * seconds[panel])) if seconds[panel] > 0 else 0.0
    cascades = len({part.label for part in slices if part.panel == "executed"})
    return Timeline(step, picture, ranks, cascades, seconds, idle, scaled, "")


def _slices(path: Path) -> tuple[list[Slice], bool]:
    """Return the slices of a trace, and whether its plan was scaled."""
    trace = parse(read_named(path, _MOST_BYTES))
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise ValueError("it holds no traceEvents")
    records = [event for event in events if isinstance(event, dict)]
    panels = {
        event["pid"]: str(event["args"].get("name", ""))
        for event in records
        if event.get("name") == "process_name"
        and isinstance(event.get("args"), dict)
        and isinstance(event.get("pid"), int)
    }
    slices = list(_of(records, panels))
    if not slices:
        raise ValueError("it holds no cascades")
    if len(slices) > _MOST_SLICES:
        raise ValueError(f"it holds {len(slices)} slices, more than {_MOST_SLICES}: look at its own page")
    return slices, any("same scale" in name for name in panels.values())


def _of(events: list[dict[str, Any]], panels: dict[int, str]) -> Iterator[Slice]:
    for event in events:
        start, length = number(event.get("ts")), number(event.get("dur"))
        rank, named = (
            event.get("tid"),
            panels.get(event["pid"]) if isinstance(event.get("pid"), int) else None,
        )
        if event.get("ph") != "X" or start is None or length is None or named is None:
            continue
        if isinstance(rank, int) and 0 <= rank < 1 << 20 and length >= 0:
            panel = "executed" if named.startswith("executed") else "planned"
            label = str(event.get("name", ""))[:80]
            yield Slice(
                panel, rank, label, str(event.get("cat", ""))[:20], start / 1e6, (start + length) / 1e6
            )
