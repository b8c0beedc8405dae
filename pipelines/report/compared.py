"""Page of several datasets side by side, from their numbers."""

from collections.abc import Mapping
from typing import Any

from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.distributions import bars, overlaid
from reelweave.pipelines.report.web.template import render


def compared_page(figures: Mapping[str, Any]) -> str:
    """Render the page that compares datasets.

    Args:
        figures: result of `reelweave.pipelines.report.numbers.compared.compared_numbers`.
    """
    names = [dataset["name"] for dataset in figures["datasets"]]
    return render(
        "compared.html",
        title=" and ".join(names),
        subtitle=f"{len(names)} datasets side by side",
        notes=[],
        figures=[],
        names=names,
        places=[dataset["dataset"] for dataset in figures["datasets"]],
        summary=summary(figures),
        funnel=_funnel(names, figures["stages"]),
        stages=[
            (
                stage["state"],
                stage["stage"],
                *(cell for pair in zip(stage["rows"], stage["seconds"], strict=True) for cell in pair),
            )
            for stage in figures["stages"]
        ],
        scores=[
            _score(names, index, score)
            for index, score in enumerate(figures["scores"])
            if len(score["edges"]) > 2
        ],
        differences=differing(figures),
        keys=figures["keys"],
    )


def summary(figures: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the figures that matter most, those of each dataset beside each other."""
    totals = [dataset["totals"] for dataset in figures["datasets"]]
    only = [only_here["count"] for only_here in figures["keys"]["only"]]
    return [
        ("sources", [f"{total['sources']:,}" for total in totals]),
        ("clips kept", [f"{total['samples']:,}" for total in totals]),
        ("hours of clips", [f"{total['duration_s'] / 3600:,.3g}" for total in totals]),
        ("encoded, MB", [f"{total['clip_bytes'] / 1e6:,.1f}" for total in totals]),
        *(
            (f"rows {state}", [f"{dataset['accounting'].get(state, 0):,}" for dataset in totals])
            for state in ("filtered", "duplicate", "failed")
        ),
        ("keys that only it has", [f"{count:,}" for count in only]),
    ]


def differing(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the keys whose values differ, with the value in each dataset."""
    return [
        (difference["key"], *("(absent)" if value is None else value for value in difference["values"]))
        for difference in figures["differences"]
    ]


def _funnel(names: list[str], stages: list[dict[str, Any]]) -> Chart:
    values: dict[str, dict[str, float]] = {}
    for index, name in enumerate(names):
        seconds: dict[str, float] = {}
        for stage in stages:
            seconds[stage["state"]] = seconds.get(stage["state"], 0.0) + stage["seconds"][index]
        total = sum(seconds.values()) or 1.0
        values[name] = {state: 100 * of / total for state, of in seconds.items()}
    return bars("funnel", "What became of the footage", values, "percent of the seconds")


def _score(names: list[str], index: int, score: Mapping[str, Any]) -> Chart:
    details = [
        f"{name}: {bound} {value:g}"
        for bound in ("min", "max")
        for name, value in zip(names, score[f"{bound}_threshold"], strict=True)
        if value is not None
    ]
    note = f"Thresholds: {'; '.join(details)}." if details else ""
    counts = dict(zip(names, score["counts"], strict=True))
    return overlaid(f"score-{index}", score["name"].replace("_", " "), score["edges"], counts, note)
