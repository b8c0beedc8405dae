"""Charts of points in two dimensions: lines, points among curves, and points to select."""

from collections.abc import Mapping, Sequence
from typing import Any

from reelweave.pipelines.report.web.chart import CLUSTER_COLOURS, Chart, axis_title, colour, frame


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
        **frame(220),
        "data": {
            "values": [
                {"x": x, "y": y, "series": curve} for curve, of_one in points.items() for x, y in of_one
            ]
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
            "color": colour(list(points)),
            "tooltip": [{"field": "series"}, *({"field": of, "type": "quantitative"} for of in ("x", "y"))],
        },
    }
    rows = [(curve, x, y) for curve, of_one in points.items() for x, y in of_one]
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
    # Axes and colours that both layers share.
    log = {"type": "log", "nice": False}
    x = {"field": "x", "type": "quantitative", "title": axis_title(x_title), "scale": log}
    y = {"field": "y", "type": "quantitative", "title": axis_title(y_title), "scale": log if log_y else {}}
    size = {"field": "size", "type": "quantitative", "legend": None}
    colours = colour(list(dict.fromkeys([*curves, *(str(point["series"]) for point in points)])))
    # Curves below, points above them.
    spec = {
        **frame(240),
        "layer": [
            {
                "data": {
                    "values": [
                        {"x": x, "y": y, "series": curve}
                        for curve, of_one in curves.items()
                        for x, y in of_one
                    ]
                },
                "mark": {"type": "line", "clip": True},
                "encoding": {"x": x, "y": y, "color": colours},
            },
            {
                "data": {"values": list(points)},
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colours,
                    **({"size": size} if any("size" in point for point in points) else {}),
                    "tooltip": [
                        {"field": "label"},
                        *({"field": of, "type": "quantitative"} for of in ("x", "y")),
                    ],
                },
            },
        ],
    }
    rows = [(point["label"], point["x"], point["y"], point["series"]) for point in points]
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
    # Colours repeat: neighbours differ, and the tooltip tells which is which.
    colours = [CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)] for index in range(len(series))]
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
    # Points shrink as they become more, so that they do not hide each other.
    size = min(70, max(6, 60_000 // max(1, points)))
    # Circles, and rings around outliers.
    spec = {
        **frame(480),
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
