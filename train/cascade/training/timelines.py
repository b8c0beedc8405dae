"""Pictures of a step: as it was planned, and as it was executed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from train.cascade.execution.step import Executed
from train.cascade.paper.timeline import Panel, page, trace
from train.cascade.planners.plan import Plan
from train.cascade.problem import Cascade, Module
from train.cascade.schedule import Schedule
from train.distributed.world import World

FOLDER = "timeline"
"""In the folder of a run."""


class RankRun(NamedTuple):
    """What a rank did of a cascade, from when, until when."""

    cascade: Cascade
    start_s: float
    end_s: float


def all_runs(own: Sequence[Executed], world: World) -> list[list[RankRun]]:
    """Those of all ranks, rank by rank; a collective."""
    said = world.gather_text(json.dumps([(one.run.cascade, one.start_s, one.end_s) for one in own]))
    return [
        [
            RankRun(Cascade(sample, Module(module)), start_s, end_s)
            for (sample, module), start_s, end_s in json.loads(rows)
        ]
        for rows in said
    ]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Plan and execution of a step.

    Attributes:
        step: from 1.
        plan: of it.
        placed: as it was to be executed.
        runs: what each rank did, rank by rank.
        measured: whether the plan's seconds are real ones; else only their shares mean something.
    """

    step: int
    plan: Plan
    placed: Schedule
    runs: Sequence[Sequence[RankRun]]
    measured: bool

    @property
    def name(self) -> str:
        """Of its files."""
        return f"step-{self.step:06d}"

    @cached_property
    def executed(self) -> Schedule:
        """From when the first of a cascade's ranks began until the last was done, waits for each other included."""
        starts: dict[Cascade, float] = {}
        ends: dict[Cascade, float] = {}
        for cascade, start_s, end_s in (run for runs in self.runs for run in runs):
            starts[cascade] = min(starts.get(cascade, start_s), start_s)
            ends[cascade] = max(ends.get(cascade, end_s), end_s)
        runs = (
            run._replace(start_s=starts[run.cascade], end_s=ends[run.cascade]) for run in self.placed.runs
        )
        return Schedule.of(runs, self.placed.gpus)

    @property
    def idle(self) -> float:
        """Share of the ranks' time until the last cascade ended in which they ran nothing."""
        busy_s = sum(run.end_s - run.start_s for runs in self.runs for run in runs)
        whole_s = self.placed.gpus * self.executed.makespan_s
        return 1 - busy_s / whole_s if whole_s else 0.0

    @property
    def told(self) -> str:
        """In words."""
        planned = f"{self.placed.makespan_s:.2f} s planned, " if self.measured else ""
        # Sums leave a little of nothing.
        idle = f"{abs(self.placed.idle):.1%} idle planned, {self.idle:.1%} executed"
        return (
            f"step {self.step}: {len(self.placed.runs)} cascades: {planned}{self.executed.makespan_s:.2f} s executed;"
            f" {idle}; plan {self.plan.gap:.1%} above the bound"
        )

    def write(self, folder: Path, gpus_per_node: int) -> None:
        """A page that needs no network, and a trace for ui.perfetto.dev."""
        folder.mkdir(parents=True, exist_ok=True)
        panels = [self._planned(), Panel("executed", self.executed)]
        (folder / f"{self.name}.json").write_text(json.dumps(trace(panels, gpus_per_node)))
        html = page(panels, self.told, gpus_per_node)
        (folder / f"{self.name}.html").write_text(html, encoding="utf-8")

    def _planned(self) -> Panel:
        if self.measured or not self.placed.makespan_s:
            return Panel("planned", self.placed)
        # Nominal seconds say nothing beside real ones.
        scale = self.executed.makespan_s / self.placed.makespan_s
        runs = (
            run._replace(start_s=run.start_s * scale, end_s=run.end_s * scale) for run in self.placed.runs
        )
        return Panel("planned, to the same scale", Schedule.of(runs, self.placed.gpus))
