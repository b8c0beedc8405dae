"""Report sections on curation: scores with thresholds, duplicates, facts of the last run."""

from typing import Any

import numpy as np

from loader.dataset import Dataset
from loader.dataset.tables.parquet import to_rows
from pipelines.report.run_notes import ForecastNote, RunNote, StatusNote, read_note

BINS = 24
MAX_GROUPS = 50

_MOST = 1e300  # of a score or a threshold; infinite ones and NaN are not drawn


def score_charts(dataset: Dataset) -> list[dict[str, Any]]:
    """Return a histogram of every score over all cut clips, with its thresholds.

    Each bar has a count of clips and whether a threshold rejects all of them.
    """
    rows = to_rows(dataset.scores)
    names = sorted({name for row in rows for name in row["scores"]})
    thresholds = _thresholds(dataset)
    charts = []
    for name in names:
        values = np.array([row["scores"][name] for row in rows if name in row["scores"]])
        values = values[np.abs(values) < _MOST]
        if not len(values):
            continue
        low, high = thresholds.get(f"min_{name}"), thresholds.get(f"max_{name}")
        charts.append({"title": _title(name, low, high), "bars": _bars(values, low, high)})
    return charts


def duplicate_groups(dataset: Dataset) -> list[dict[str, Any]]:
    """Return kept samples with the duplicates dropped for each, largest groups first."""
    rows = to_rows(dataset.accounting)
    kept = {row["key"]: row for row in rows if row["state"] == "kept"}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["state"] == "duplicate" and row["duplicate_of"] in kept:
            groups.setdefault(row["duplicate_of"], []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {"key": key, "kept": kept[key], "row_number": dataset.row_numbers[key], "copies": copies}
        for key, copies in ordered[:MAX_GROUPS]
    ]


def run_facts(dataset: Dataset) -> dict[str, Any]:
    """Return facts of the last run: seconds per stage, planned and achieved rates, slowest sources, forecast."""
    run = read_note(dataset, "run", RunNote)
    forecast = read_note(dataset, "forecast", ForecastNote)
    total = sum(run.worker_seconds.values())
    workers = {name: count for plan in run.plans for name, count in plan.workers.items()}
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


def _thresholds(dataset: Dataset) -> dict[str, float]:
    """Return the finite thresholds in a manifest, which may be another program's."""
    curate = dataset.manifest.config.get("curate")
    filters = curate.get("filters") if isinstance(curate, dict) else None
    named = filters.items() if isinstance(filters, dict) else ()
    return {name: value for name, value in named if isinstance(value, int | float) and abs(value) < _MOST}


def _title(name: str, low: float | None, high: float | None) -> str:
    bounds = [f"at least {low:g}"] if low is not None else []
    bounds += [f"at most {high:g}"] if high is not None else []
    return f"{name}: {' and '.join(bounds)}" if bounds else name


def _bars(values: np.ndarray[Any, Any], low: float | None, high: float | None) -> list[dict[str, Any]]:
    first, last = float(values.min()), float(values.max())
    try:
        counts, edges = np.histogram(values, bins=min(BINS, max(4, len(values) // 4)) if first < last else 1)
    except ValueError:  # they differ by less than so many bins can tell apart
        counts, edges = np.array([len(values)]), np.array([first, last])
    if first == last:
        edges = np.array([first, last])
    most = int(counts.max())
    return [
        {
            "label": f"{start:.4g}" if start == end else f"{start:.4g} to {end:.4g}",
            "count": int(count),
            "percent": round(100 * count / most),
            "rejected": (low is not None and end < low) or (high is not None and start > high),
        }
        for start, end, count in zip(edges, edges[1:], counts, strict=False)
    ]
