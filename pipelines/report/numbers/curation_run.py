"""Facts of the last curation run: seconds and workers per stage, rates, slowest sources, forecast."""

from typing import Any

from reelweave.loader.dataset import Dataset
from reelweave.pipelines.report.numbers.run_notes import ForecastNote, RunNote, StatusNote, read_note


def run_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the facts, empty where no run left notes."""
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
    )
    return {
        "wall_s": run.wall_s,
        "stages": [
            {
                "stage": name,
                "seconds": seconds,
                "share": seconds / total if total else 0.0,
                "workers": workers.get(name),
                "busy": busy.get(name),
            }
            for name, seconds in run.worker_seconds.items()
            if run.wall_s is not None
        ],
        "plans": [plan.model_dump() for plan in run.plans],
        "slowest": [
            {"source": source, "seconds": seconds}
            for source, seconds in read_note(dataset, "status", StatusNote).slowest
        ],
        "forecast": [
            {"what": name, **note.model_dump(), "actual": actual}
            for name, note, actual in expected
            if note is not None
        ],
    }


def run_notes(dataset: Dataset) -> list[str]:
    """Return notes of the last run: missing models, sources no longer in the input."""
    return read_note(dataset, "run", RunNote).notes
