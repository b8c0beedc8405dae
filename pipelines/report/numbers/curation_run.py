"""Facts of the last curation run: seconds and workers per stage, rates, slowest sources, forecast."""

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc

from reelweave.curate.run.tables.remarks import RemarkCounts
from reelweave.loader.dataset import Dataset
from reelweave.pipelines.report.numbers.bit_rates import mean_mbps
from reelweave.pipelines.report.numbers.run_notes import (
    EstimateNote,
    ForecastNote,
    PlanNote,
    RunNote,
    StatusNote,
    read_note,
)


@dataclass(frozen=True)
class StageFacts:
    """Time that the workers of one stage took.

    Attributes:
        stage: its name.
        seconds: seconds of its workers.
        share: share of the seconds of all stages.
        workers: number of workers; None where none were planned.
        busy: share of the time that they worked; None where not measured.
    """

    stage: str
    seconds: float
    share: float
    workers: int | None
    busy: float | None


@dataclass(frozen=True)
class OperationFacts:
    """Processor time that one operation of the passes over sources took.

    Attributes:
        operation: its name.
        core_s: processor seconds.
        share: share of those of all operations.
        core_s_per_hour: processor seconds for an hour of film; None where the length is not known.
    """

    operation: str
    core_s: float
    share: float
    core_s_per_hour: float | None


@dataclass(frozen=True)
class ForecastFacts:
    """A forecast beside what came of it."""

    what: str
    estimate: EstimateNote
    actual: float

    def to_json(self) -> dict[str, Any]:
        """Return the values, the estimate's beside the others."""
        return {"what": self.what, **self.estimate.model_dump(), "actual": self.actual}


@dataclass(frozen=True)
class RunFacts:
    """Facts of a curation run; empty where it left no notes.

    Attributes:
        wall_s: seconds of the run.
        stages: work of each stage.
        plans: speed and workers of each pass.
        slowest: slowest sources and their seconds.
        forecast: what was expected, and came.
        operations: what the passes over sources took, the dearest first.
        film_s: length of these sources, seconds.
    """

    wall_s: float | None
    stages: list[StageFacts]
    plans: list[PlanNote]
    slowest: list[tuple[str, float]]
    forecast: list[ForecastFacts]
    operations: list[OperationFacts]
    film_s: float

    @property
    def core_s(self) -> float:
        """Processor seconds of the passes over sources."""
        return sum(facts.core_s for facts in self.operations)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {
            "wall_s": self.wall_s,
            "stages": [asdict(stage) for stage in self.stages],
            "plans": [plan.model_dump() for plan in self.plans],
            "slowest": [{"source": source, "seconds": seconds} for source, seconds in self.slowest],
            "forecast": [facts.to_json() for facts in self.forecast],
            "operations": [asdict(facts) for facts in self.operations],
            "film_s": self.film_s,
        }


def run_facts(dataset: Dataset) -> RunFacts:
    """Return the facts of the last run."""
    run = read_note(dataset, "run", RunNote)
    forecast = read_note(dataset, "forecast", ForecastNote)
    total = sum(run.worker_seconds.values())
    workers = {name: count for plan in run.plans for name, count in plan.workers.items()}
    busy = {name: share for plan in run.plans for name, share in plan.busy.items()}
    totals = dataset.manifest.totals
    expected = (
        ("clips", forecast.clips, totals.samples),
        ("clip_gb", forecast.clip_gb, totals.clip_bytes / 1e9),
        ("clip_hours", forecast.clip_hours, totals.duration_s / 3600),
        ("clip_mbps", forecast.clip_mbps, mean_mbps(totals) or 0.0),
    )
    stages = {} if run.wall_s is None else run.worker_seconds
    return RunFacts(
        run.wall_s,
        [
            StageFacts(name, seconds, seconds / total if total else 0.0, workers.get(name), busy.get(name))
            for name, seconds in stages.items()
        ],
        run.plans,
        read_note(dataset, "status", StatusNote).slowest,
        [ForecastFacts(name, note, actual) for name, note, actual in expected if note is not None],
        _operations(run),
        run.film_s,
    )


def _operations(run: RunNote) -> list[OperationFacts]:
    total, hours = sum(run.operation_s.values()), run.film_s / 3600
    dearest_first = sorted(run.operation_s.items(), key=lambda item: -item[1])
    return [
        OperationFacts(name, core_s, core_s / total if total else 0.0, core_s / hours if hours else None)
        for name, core_s in dearest_first
    ]


def dataset_notes(dataset: Dataset) -> list[str]:
    """Return notes of the last run, such as missing models, and what is said of kept clips."""
    clips = RemarkCounts()
    for table in dataset.table_parts("accounting", ["state", "reason"]):
        clips.add_reasons(table.filter(pc.equal(table.column("state"), "kept")).column("reason"))
    clips.add_sounds(dataset.column("audio"))
    return [*read_note(dataset, "run", RunNote).notes, *clips.sentences()]
