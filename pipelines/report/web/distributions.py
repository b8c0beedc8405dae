"""Charts of counts: histograms, histograms over each other, and bars."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from reelweave.pipelines.report.web.chart import Chart, axis_title, colour, frame
from reelweave.pipelines.report.web.curves import lines

_BAR_PX = 22
_BIN_FIELDS = (
    ("series", "nominal"),
    ("low", "quantitative"),
    ("high", "quantitative"),
    ("count", "quantitative"),
)


def histogram(
    name: str,
    title: str,
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    thresholds: Mapping[str, float] | None = None,
    unit: str = "",
    note: str = "",
    log_x: bool = False,
) -> Chart:
    """Return a histogram, stacked by series, with a line at each threshold.

    Args:
        name: name of the chart.
        title: heading.
        edges: edges of the bins, rising, one more than bins.
        counts: counts of each bin by series; a series that is a state has its colour.
        thresholds: values of lines by label.
        unit: unit of the values.
        note: sentence below the heading.
        log_x: true if values are drawn on a logarithmic scale.
    """
    thresholds = dict(thresholds or {})
    reach = [*edges, *thresholds.values()]
    if edges and edges[0] == edges[-1]:  # one value; a bar without a width cannot be seen
        half = (max(reach) - min(reach) or abs(edges[0]) or 1) / 100
        edges = [edges[0] - half, edges[-1] + half]
        reach += edges
    bins = [
        {"low": low, "high": high, "count": count, "series": series}
        for series, of_bins in counts.items()
        for low, high, count in zip(edges, edges[1:], of_bins, strict=False)
        if count
    ]
    x = {"field": "low", "type": "quantitative", "bin": {"binned": True}, "title": axis_title(unit) or None}
    scale = {"type": "log"} if log_x else {}
    spec = {
        **frame(),
        "usermeta": {"edges": list(edges)},
        "datasets": {
            "bins": bins,
            "thresholds": [{"label": key, "at": at} for key, at in thresholds.items()],
        },
        "layer": [
            {
                "data": {"name": "bins"},
                "mark": {"type": "bar", "binSpacing": 1},
                "encoding": {
                    "x": {**x, "scale": {**scale, "domain": [min(reach), max(reach)], "nice": False}},
                    "x2": {"field": "high"},
                    "y": {
                        "field": "count",
                        "type": "quantitative",
                        "title": None,
                        "axis": {"tickMinStep": 1},
                    },
                    "color": colour(list(counts)),
                    "tooltip": [{"field": field, "type": kind} for field, kind in _BIN_FIELDS],
                },
            },
            {
                "data": {"name": "thresholds"},
                "mark": {"type": "rule", "size": 2, "strokeDash": [5, 3], "clip": True},
                "encoding": {
                    "x": {"field": "at", "type": "quantitative"},
                    "tooltip": [{"field": "label"}, {"field": "at", "type": "quantitative"}],
                },
            },
        ],
    }
    rows = [
        (f"{_short(low)} to {_short(high)}", *(of_bins[index] for of_bins in counts.values()))
        for index, (low, high) in enumerate(pairwise(edges))
    ]
    return Chart(name, title, spec, (unit or "from, to", *counts), rows, note)


def overlaid(
    name: str,
    title: str,
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    note: str = "",
) -> Chart:
    """Return histograms over each other as outlines, each in percent of its own counts.

    Args:
        name: name of the chart.
        title: heading.
        edges: edges of the bins, rising, one more than bins.
        counts: counts of each bin by series; they are in the table.
        note: sentence below the heading.
    """
    points = {}
    for series, of_bins in counts.items():
        share = [100 * count / (sum(of_bins) or 1) for count in of_bins]
        points[series] = [(edges[0], 0.0), *zip(edges, share, strict=False), (edges[-1], share[-1])]
        points[series] += [(edges[-1], 0.0)]
    base = lines(name, title, points, "", "percent of its clips", note=note)
    spec = {**base.spec, "mark": {"type": "line", "interpolate": "step-after", "clip": True}}
    spec["encoding"]["x"]["title"] = None
    spec["encoding"]["color"]["scale"] = {"domain": list(points)}  # in their order
    rows = [
        (f"{_short(low)} to {_short(high)}", *(of_bins[index] for of_bins in counts.values()))
        for index, (low, high) in enumerate(pairwise(edges))
    ]
    return Chart(name, title, spec, ("from, to", *counts), rows, note)


def bars(
    name: str,
    title: str,
    values: Mapping[str, Mapping[str, float]],
    unit: str,
    note: str = "",
) -> Chart:
    """Return horizontal bars in the order given, stacked by series.

    Args:
        name: name of the chart.
        title: heading.
        values: values by series, by label of the bar.
        unit: counted things.
        note: sentence below the heading.
    """
    series = list(dict.fromkeys(name for of_bar in values.values() for name in of_bar))
    spec = {
        **frame(max(60, _BAR_PX * len(values))),
        "data": {
            "values": [
                {"label": label, "value": value, "series": name}
                for label, of_bar in values.items()
                for name, value in of_bar.items()
            ]
        },
        "mark": "bar",
        "encoding": {
            "y": {
                "field": "label",
                "type": "nominal",
                "sort": None,  # as given; a list would become an expression, which not every name can stand in
                "title": None,
                "axis": {"labelLimit": 220},
            },
            "x": {"field": "value", "type": "quantitative", "title": axis_title(unit)},
            "color": colour(series),
            "tooltip": [{"field": "label"}, {"field": "series"}, {"field": "value", "type": "quantitative"}],
        },
    }
    rows = [(label, *(of_bar.get(name, 0) for name in series)) for label, of_bar in values.items()]
    return Chart(name, title, spec, ("", *series), rows, note)


def _short(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value / 1000:,.4g}k"
