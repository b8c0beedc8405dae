"""Charts as Vega-Lite specifications, each with the table that says the same without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

STATE_COLOURS = {"kept": "#2e9e6b", "filtered": "#c98a16", "duplicate": "#7a5cc9", "failed": "#d04545"}
"""Colours of states on light and dark ground; of the same names in report.css."""

CLUSTER_COLOURS = (
    "#4c7fd9",
    "#d9822b",
    "#2e9e6b",
    "#d04545",
    "#8a63d2",
    "#17a2b8",
    "#c2488f",
    "#8f8f1f",
    "#a0643c",
    "#7f8b99",
)
"""Colours of clusters in their order, again from the first after the last."""

_HEIGHT_PX = 150
_BAR_PX = 22
_LEGEND_LINE = 36  # letters that fit beside each other on a phone


@dataclass(frozen=True)
class Chart:
    """Vega-Lite chart of a page.

    Attributes:
        name: letters, digits, "-" and "_"; unique on its page.
        title: heading.
        spec: Vega-Lite specification.
        columns: headings of the table with the same numbers.
        rows: rows of the table.
        note: sentence below the heading, or "".
    """

    name: str
    title: str
    spec: dict[str, Any]
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    note: str = ""


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
        **_frame(),
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
                    "color": _colour(list(counts)),
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
        (f"{_short(low)} to {_short(high)}", *(of_bins[place] for of_bins in counts.values()))
        for place, (low, high) in enumerate(pairwise(edges))
    ]
    return Chart(name, title, spec, (unit or "from, to", *counts), rows, note)


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
    series = list(dict.fromkeys(one for of_bar in values.values() for one in of_bar))
    spec = {
        **_frame(max(60, _BAR_PX * len(values))),
        "data": {
            "values": [
                {"label": label, "value": value, "series": one}
                for label, of_bar in values.items()
                for one, value in of_bar.items()
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
            "color": _colour(series),
            "tooltip": [{"field": "label"}, {"field": "series"}, {"field": "value", "type": "quantitative"}],
        },
    }
    rows = [(label, *(of_bar.get(one, 0) for one in series)) for label, of_bar in values.items()]
    return Chart(name, title, spec, ("", *series), rows, note)


def lines(
    name: str,
    title: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    log_y: bool = False,
    note: str = "",
) -> Chart:
    """Return a line per series, to be zoomed and moved.

    Args:
        name: name of the chart.
        title: heading.
        points: (x, y) by series; rising x.
        x_title: title of the horizontal axis.
        y_title: title of the vertical axis.
        log_y: true if y is drawn on a logarithmic scale.
        note: sentence below the heading.
    """
    spec = {
        **_frame(220),
        "data": {
            "values": [{"x": x, "y": y, "series": one} for one, of_one in points.items() for x, y in of_one]
        },
        "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
        "mark": {"type": "line", "point": max(map(len, points.values()), default=0) <= 60, "clip": True},
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "title": axis_title(x_title),
                "scale": {"nice": False, "zero": False},
            },
            "y": {
                "field": "y",
                "type": "quantitative",
                "title": axis_title(y_title),
                "scale": {"type": "log"} if log_y else {"zero": False},
            },
            "color": _colour(list(points)),
            "tooltip": [{"field": "series"}, *({"field": of, "type": "quantitative"} for of in ("x", "y"))],
        },
    }
    rows = [(one, x, y) for one, of_one in points.items() for x, y in of_one]
    return Chart(name, title, spec, ("", x_title, y_title), rows, note)


def points_and_curves(
    name: str,
    title: str,
    points: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    note: str = "",
    series_title: str = "",
    log_y: bool = True,
) -> Chart:
    """Return points among curves, x on a logarithmic scale.

    Args:
        name: name of the chart.
        title: heading.
        points: "x", "y", "label" and "series" of each, and "size" where they differ in it.
        curves: (x, y) by series; rising x.
        x_title: title of the horizontal axis.
        y_title: title of the vertical axis.
        note: sentence below the heading.
        series_title: heading of the series of points in the table.
        log_y: true if y is drawn on a logarithmic scale, too.
    """
    log = {"type": "log", "nice": False}
    x = {"field": "x", "type": "quantitative", "title": axis_title(x_title), "scale": log}
    y = {"field": "y", "type": "quantitative", "title": axis_title(y_title), "scale": log if log_y else {}}
    size = {"field": "size", "type": "quantitative", "legend": None}
    colour = _colour(list(dict.fromkeys([*curves, *(str(one["series"]) for one in points)])))
    spec = {
        **_frame(240),
        "layer": [
            {
                "data": {
                    "values": [
                        {"x": x, "y": y, "series": one} for one, of_one in curves.items() for x, y in of_one
                    ]
                },
                "mark": {"type": "line", "clip": True},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "data": {"values": list(points)},
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    **({"size": size} if any("size" in one for one in points) else {}),
                    "tooltip": [
                        {"field": "label"},
                        *({"field": of, "type": "quantitative"} for of in ("x", "y")),
                    ],
                },
            },
        ],
    }
    rows = [(one["label"], one["x"], one["y"], one["series"]) for one in points]
    return Chart(name, title, spec, ("", x_title, y_title, series_title), rows, note)


def scatter(
    name: str,
    title: str,
    series: Sequence[str],
    points: int,
    columns: tuple[str, ...],
    rows: Sequence[Sequence[object]],
    note: str = "",
) -> Chart:
    """Return points without values, on which a rectangle can be drawn; a script hands them to the data "points".

    A point has "x", "y", "series", "label", and "far", whether it gets a ring.

    Args:
        name: name of the chart.
        title: heading.
        series: names of all series.
        points: number of points, which decides their size.
        columns: headings of the table.
        rows: rows of the table, which the values are too many for.
        note: sentence below the heading.
    """
    colours = [CLUSTER_COLOURS[place % len(CLUSTER_COLOURS)] for place in range(len(series))]
    axis = {"type": "quantitative", "title": None, "scale": {"zero": False}}
    encoding = {
        "x": {"field": "x", **axis},
        "y": {"field": "y", **axis},
        "color": {
            "field": "series",
            "type": "nominal",
            "title": None,
            "legend": None,
            "scale": {"domain": list(series), "range": colours},
        },
        "tooltip": [{"field": "label"}, *({"field": of, "type": "quantitative"} for of in ("x", "y"))],
    }
    size = min(70, max(6, 60_000 // max(1, points)))
    spec = {
        **_frame(480),
        "datasets": {"points": []},
        "data": {"name": "points"},
        "layer": [
            {
                "params": [{"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}],
                "mark": {"type": "circle", "size": size, "opacity": 0.75, "clip": True},
                "encoding": encoding,
            },
            {
                "transform": [{"filter": {"field": "far", "equal": True}}],
                "mark": {"type": "point", "size": 3 * size + 60, "strokeWidth": 1.5, "clip": True},
                "encoding": encoding,
            },
        ],
    }
    return Chart(name, title, spec, columns, rows, note)


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
        (f"{_short(low)} to {_short(high)}", *(of_bins[place] for of_bins in counts.values()))
        for place, (low, high) in enumerate(pairwise(edges))
    ]
    return Chart(name, title, spec, ("from, to", *counts), rows, note)


def axis_title(text: str) -> str:
    """Return a title that Vega can put into the expressions it makes of titles.

    Its parser takes U+2028 and U+2029 for the end of a line, which no string may hold.
    """
    return text.replace("\u2028", " ").replace("\u2029", " ")


_BIN_FIELDS = (
    ("series", "nominal"),
    ("low", "quantitative"),
    ("high", "quantitative"),
    ("count", "quantitative"),
)


def _frame(height: int = _HEIGHT_PX) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def _colour(series: Sequence[str]) -> dict[str, Any]:
    colour: dict[str, Any] = {"field": "series", "type": "nominal", "title": None}
    if all(one in STATE_COLOURS for one in series):
        colour["scale"] = {"domain": list(series), "range": [STATE_COLOURS[one] for one in series]}
    if len(series) < 2:
        colour["legend"] = None
    elif len(series) > 3 and sum(map(len, series)) > _LEGEND_LINE:
        colour["legend"] = {"columns": 2}
    return colour


def _short(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value / 1000:,.4g}k"
