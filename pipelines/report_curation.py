"""What the report says of a dataset's making: scores with their thresholds, duplicates, how the run went."""

import json
from typing import Any

import numpy as np

from loader.dataset import Dataset
from loader.dataset.tables import to_rows

BINS = 24
MAX_GROUPS = 50

_RUN, _STATUS, _FORECAST = (f".ledger/{name}.json" for name in ("run", "status", "forecast"))
_MAX_NOTE_BYTES = 16 << 20


def score_charts(dataset: Dataset) -> list[dict[str, Any]]:
    """A histogram of every score over all clips that were cut, with what its thresholds reject.

    Each bar counts clips and says whether a threshold rejects the whole of it.
    """
    rows = to_rows(dataset.scores)
    names = sorted({name for row in rows for name in row["scores"]})
    thresholds = dataset.manifest.config.get("curate", {}).get("filters", {})
    charts = []
    for name in names:
        values = np.array([row["scores"][name] for row in rows if name in row["scores"]])
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        low, high = thresholds.get(f"min_{name}"), thresholds.get(f"max_{name}")
        charts.append({"title": _title(name, low, high), "bars": _bars(values, low, high)})
    return charts


def duplicate_groups(dataset: Dataset) -> list[dict[str, Any]]:
    """Kept samples with what was dropped as a duplicate of each, the largest groups first."""
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
    """How the last run went: seconds per stage, plan against achieved, slowest sources, forecast against actual."""
    run, status, forecast = (_note(dataset, path) for path in (_RUN, _STATUS, _FORECAST))
    worker_s = run.get("worker_seconds", {})
    total = sum(worker_s.values())
    plans = run.get("plans", [])
    workers = {name: count for plan in plans for name, count in plan["workers"].items()}
    totals = dataset.manifest.totals
    actual = {
        "clips": totals.samples,
        "clip_gb": totals.clip_bytes / 1e9,
        "clip_hours": totals.duration_s / 3600,
    }
    return {
        "wall_s": run.get("wall_s"),
        "stages": [
            {
                "stage": name,
                "seconds": seconds,
                "share": seconds / total if total else 0.0,
                "workers": workers.get(name),
            }
            for name, seconds in worker_s.items()
        ],
        "plans": plans,
        "slowest": [{"source": source, "seconds": seconds} for source, seconds in status.get("slowest", ())],
        "forecast": [
            {"what": name, **forecast[name], "actual": value}
            for name, value in actual.items()
            if name in forecast
        ],
    }


def run_notes(dataset: Dataset) -> list[str]:
    """What a person should know of the run: models that were not there, sources no longer in the input."""
    return [str(note) for note in _note(dataset, _RUN).get("notes", ())]


def _note(dataset: Dataset, path: str) -> dict[str, Any]:
    info = dataset.storage.stat(path)
    if info is None or info.size > _MAX_NOTE_BYTES:
        return {}
    try:
        value = json.loads(dataset.storage.read(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _title(name: str, low: float | None, high: float | None) -> str:
    bounds = [f"at least {low:g}"] if low is not None else []
    bounds += [f"at most {high:g}"] if high is not None else []
    return f"{name}: {' and '.join(bounds)}" if bounds else name


def _bars(values: np.ndarray[Any, Any], low: float | None, high: float | None) -> list[dict[str, Any]]:
    first, last = float(values.min()), float(values.max())
    if first == last:
        edges = np.array([first, last])
        counts = np.array([len(values)])
    else:
        counts, edges = np.histogram(values, bins=min(BINS, max(4, len(values) // 4)))
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
