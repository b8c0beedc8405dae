"""Timelines of a step: planned and executed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from reelweave.train.cascade.execution.step import Executed
from reelweave.train.cascade.planners.plan import CascadePlan
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.simulation.timeline import Panel, page, trace
from reelweave.train.distributed.world import World

FOLDER = "timeline"
"""Subfolder of the run's folder."""


class RankRun(NamedTuple):
    """Begin and end of one rank's part of a cascade."""

    cascade: Cascade
    start_s: float
    end_s: float


def all_runs(local_runs: Sequence[Executed], world: World) -> list[list[RankRun]]:
    """Gather the runs of all ranks, ordered by rank; a collective."""
    rank_texts = world.gather_text(
        json.dumps([(executed.run.cascade, executed.start_s, executed.end_s) for executed in local_runs])
    )
    return [
        [
            RankRun(Cascade(sample, Module(module)), start_s, end_s)
            for (sample, module), start_s, end_s in json.loads(rows)
        ]
        for rows in rank_texts
    ]


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """Planned and executed timeline of a step.

    Attributes:
        step: step number, from 1.
        plan: plan of the step.
        schedule: schedule on real GPUs.
        runs: executed runs, rank by rank.
        measured: True if planned seconds come from measured costs; otherwise only their ratios matter.
    """

    step: int
    plan: CascadePlan
    schedule: Schedule
    runs: Sequence[Sequence[RankRun]]
    measured: bool

    @property
    def name(self) -> str:
        """Base name of the timeline's files."""
        return f"step-{self.step:06d}"

    @cached_property
    def executed(self) -> Schedule:
        """Executed schedule, waits included: from the first begin of a cascade's ranks to the last end."""
        starts: dict[Cascade, float] = {}
        ends: dict[Cascade, float] = {}
        for cascade, start_s, end_s in (run for runs in self.runs for run in runs):
            starts[cascade] = min(starts.get(cascade, start_s), start_s)
            ends[cascade] = max(ends.get(cascade, end_s), end_s)
        runs = (
            run._replace(start_s=starts[run.cascade], end_s=ends[run.cascade]) for run in self.schedule.runs
        )
        return Schedule.of(runs, self.schedule.gpus)

    @property
    def idle(self) -> float:
        """Idle share of rank time until the last cascade ended."""
        busy_s = sum(run.end_s - run.start_s for runs in self.runs for run in runs)
        whole_s = self.schedule.gpus * self.executed.makespan_s
        return 1 - busy_s / whole_s if whole_s else 0.0

    @property
    def summary(self) -> str:
        """Summary of the step as a log line."""
        planned = f"{self.schedule.makespan_s:.2f} s planned, " if self.measured else ""
        # Rounding may leave a tiny negative number.
        idle = f"{abs(self.schedule.idle):.1%} idle planned, {self.idle:.1%} executed"
        return (
            f"step {self.step}: {len(self.schedule.runs)} cascades: {planned}{self.executed.makespan_s:.2f} s executed;"
            f" {idle}; plan {self.plan.gap:.1%} above the bound"
        )

    def write(self, folder: Path, gpus_per_node: int) -> None:
        """Write a self-contained HTML page and a trace for ui.perfetto.dev."""
        folder.mkdir(parents=True, exist_ok=True)
        panels = [self._planned_panel(), Panel("executed", self.executed)]
        (folder / f"{self.name}.json").write_text(json.dumps(trace(panels, gpus_per_node)))
        html = page(panels, self.summary, gpus_per_node)
        (folder / f"{self.name}.html").write_text(html, encoding="utf-8")

    def _planned_panel(self) -> Panel:
        if self.measured or not self.schedule.makespan_s:
            return Panel("planned", self.schedule)
        # Scale nominal seconds, which are not comparable to measured ones.
        scale = self.executed.makespan_s / self.schedule.makespan_s
        runs = (
            run._replace(start_s=run.start_s * scale, end_s=run.end_s * scale) for run in self.schedule.runs
        )
        return Panel("planned, to the same scale", Schedule.of(runs, self.schedule.gpus))
