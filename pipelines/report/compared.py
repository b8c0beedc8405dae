"""Page of several datasets side by side, from their numbers."""

from collections.abc import Mapping
from typing import Any

from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.distributions import bars, overlaid
from reelweave.pipelines.report.web.template import render


def compared_page(numbers: Mapping[str, Any]) -> str:
    """Render the page that compares datasets.

    Args:
        numbers: result of `reelweave.pipelines.report.numbers.compared.compared_numbers`.
    """
    names = [one["name"] for one in numbers["datasets"]]
    return render(
        "compared.html",
        title=" and ".join(names),
        subtitle=f"{len(names)} datasets side by side",
        notes=[],
        figures=[],
        names=names,
        places=[one["dataset"] for one in numbers["datasets"]],
        summary=summary(numbers),
        funnel=_funnel(names, numbers["stages"]),
        stages=[
            (
                one["state"],
                one["stage"],
                *(cell for pair in zip(one["rows"], one["seconds"], strict=True) for cell in pair),
            )
            for one in numbers["stages"]
        ],
        scores=[
            _score(names, place, one) for place, one in enumerate(numbers["scores"]) if len(one["edges"]) > 2
        ],
        differences=differing(numbers),
        keys=numbers["keys"],
    )


def summary(numbers: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the figures that matter most, those of each dataset beside each other."""
    totals = [one["totals"] for one in numbers["datasets"]]
    only = [one["count"] for one in numbers["keys"]["only"]]
    return [
        ("sources", [f"{one['sources']:,}" for one in totals]),
        ("clips kept", [f"{one['samples']:,}" for one in totals]),
        ("hours of clips", [f"{one['duration_s'] / 3600:,.3g}" for one in totals]),
        ("encoded, MB", [f"{one['clip_bytes'] / 1e6:,.1f}" for one in totals]),
        *(
            (f"rows {state}", [f"{one['accounting'].get(state, 0):,}" for one in totals])
            for state in ("filtered", "duplicate", "failed")
        ),
        ("keys that only it has", [f"{count:,}" for count in only]),
    ]


def differing(numbers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the keys whose values differ, with the value in each dataset."""
    return [
        (one["key"], *("(absent)" if value is None else value for value in one["values"]))
        for one in numbers["differences"]
    ]


def _funnel(names: list[str], stages: list[dict[str, Any]]) -> Chart:
    values: dict[str, dict[str, float]] = {}
    for place, name in enumerate(names):
        seconds: dict[str, float] = {}
        for one in stages:
            seconds[one["state"]] = seconds.get(one["state"], 0.0) + one["seconds"][place]
        total = sum(seconds.values()) or 1.0
        values[name] = {state: 100 * of / total for state, of in seconds.items()}
    return bars("funnel", "What became of the footage", values, "percent of the seconds")


def _score(names: list[str], place: int, one: Mapping[str, Any]) -> Chart:
    told = [
        f"{name}: {bound} {value:g}"
        for bound in ("min", "max")
        for name, value in zip(names, one[f"{bound}_threshold"], strict=True)
        if value is not None
    ]
    note = f"Thresholds: {'; '.join(told)}." if told else ""
    counts = dict(zip(names, one["counts"], strict=True))
    return overlaid(f"score-{place}", one["name"].replace("_", " "), one["edges"], counts, note)
