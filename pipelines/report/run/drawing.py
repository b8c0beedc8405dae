"""Charts of runs: curves with their extremes, stacked parts, cascades on ranks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reelweave.pipelines.report.run.rank_waits import RankTable
from reelweave.pipelines.report.run.series import BinnedCurve, Series
from reelweave.pipelines.report.run.timelines import Slice
from reelweave.pipelines.report.web.chart import Chart, axis_title
from reelweave.pipelines.report.web.curves import lines
from reelweave.pipelines.report.web.distributions import bars

MODULE_COLOURS = {"text": "#c98a16", "VAE": "#2e9e6b", "DiT": "#4c7fd9"}
MOST_RANKS = 64
_ROW_PX = 22
_LABELS_UP_TO = 60  # slices with their names on them


def curves(
    name: str,
    title: str,
    of: Mapping[str, tuple[Series, str]],
    y_title: str,
    log_y: bool = False,
    note: str = "",
    trends: Mapping[str, Sequence[tuple[int, float]]] | None = None,
) -> Chart:
    """Return a line through the means of each series, on a band from its lowest to its highest values.

    Args:
        name: name of the chart.
        title: heading.
        of: series and the name of its curve, by label.
        y_title: title of the axis.
        log_y: true if y is logarithmic; values of 0 and below are then left out.
        note: sentence below the heading.
        trends: further lines (step, value) by label.
    """
    # What is drawn: means of each series, and further lines.
    points = {label: series.points(curve) for label, (series, curve) in of.items()}
    points |= {label: list(line) for label, line in (trends or {}).items()}
    if log_y:
        points = {label: [(x, y) for x, y in line if y > 0] for label, line in points.items()}
    base = lines(name, title, points, "step", y_title, log_y)
    # What the table below says: means, and lowest and highest values.
    drawn_curves = {
        label: series.curves[curve] for label, (series, curve) in of.items() if curve in series.curves
    }
    widest = max((series.width for series, _ in of.values()), default=1)
    rows = [
        (label, step, *values)
        for label, curve in drawn_curves.items()
        for step, *values in zip(of[label][0].step, curve.mean, curve.low, curve.high, strict=True)
        if values[0] is not None
    ]
    rows += [
        (label, step, value, None, None) for label, line in (trends or {}).items() for step, value in line
    ]
    columns = ("", "step", y_title, "lowest", "highest")
    # Series step back behind their trends.
    base = replace(base, spec=_recolour_chart(base.spec, list(points)))
    if trends and of:
        _soften(base.spec, list(of))
    if widest == 1:
        return replace(base, rows=[row[:3] for row in rows], columns=columns[:3], note=note)
    # Where points are means of several steps, a band behind the lines shows their spread.
    said = (
        f"Each point is the mean of up to {widest:,} steps; the band spans their lowest and highest values."
    )
    spec = dict(base.spec)
    line = {key: spec.pop(key) for key in ("data", "params", "mark", "encoding")}
    spec["layer"] = [
        _band(line["encoding"], drawn_curves, {key: of[key][0] for key in drawn_curves}, log_y),
        line,
    ]
    return replace(base, spec=spec, rows=rows, columns=columns, note=" ".join(filter(None, [note, said])))


def stack_curves(
    name: str, title: str, series: Series, named: Mapping[str, str], y_title: str, note: str = ""
) -> Chart:
    """Return means of curves stacked over the steps.

    Args:
        name: name of the chart.
        title: heading.
        series: the curves.
        named: labels by name of a curve, in the order of the stack.
        y_title: title of the axis.
        note: sentence below the heading.
    """
    points = {label: line for curve, label in named.items() if (line := series.points(curve))}
    base = lines(name, title, points, "step", y_title, note=note)
    spec = _recolour_chart(base.spec, list(named.values()))
    spec["mark"] = {"type": "area", "clip": True}
    spec["encoding"]["y"] = {
        "field": "y",
        "type": "quantitative",
        "title": axis_title(y_title),
        "stack": "zero",
    }
    return replace(base, spec=_in_order(spec, list(named.values())))


def part_bars(name: str, title: str, parts: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> Chart:
    """Return a bar of stacked parts for each run, in the order and colours of `stack_curves`.

    Args:
        name: name of the chart.
        title: heading.
        parts: seconds by part, by run.
        order: all parts.
    """
    base = bars(name, title, parts, "seconds")
    return replace(base, spec=_in_order(_recolour_chart(base.spec, order), order))


def cascades(name: str, title: str, slices: Sequence[Slice], note: str = "") -> Chart:
    """Return planned above executed cascades on each rank, to be zoomed and moved in time.

    Args:
        name: name of the chart.
        title: heading.
        slices: cascades on ranks.
        note: sentence below the heading.
    """
    ranks = sorted({part.rank for part in slices})
    drawn = set(ranks[:MOST_RANKS])
    shown = sorted((part for part in slices if part.rank in drawn), key=lambda one: (one.rank, one.start_s))
    if len(ranks) > MOST_RANKS:
        note = f"{note} The first {MOST_RANKS} of {len(ranks)} ranks are drawn.".strip()
    # A row per rank, what was planned above what was executed.
    base = bars(name, title, {}, "seconds", note)
    encoding: dict[str, Any] = {
        "y": {"field": "rank", "type": "ordinal", "title": "rank"},
        "yOffset": {
            "field": "panel",
            "type": "nominal",
            "sort": None,
            "scale": {"domain": ["planned", "executed"]},
        },
        "x": {"field": "start", "type": "quantitative", "title": "seconds into the step"},
    }
    panels = ["planned", "executed"]
    colours = {"domain": list(MODULE_COLOURS), "range": list(MODULE_COLOURS.values())}
    bar: dict[str, Any] = {
        "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
        "mark": {"type": "bar", "clip": True, "stroke": "white", "strokeWidth": 0.4},
        "encoding": {
            **encoding,
            "x2": {"field": "end"},
            "color": {"field": "module", "type": "nominal", "title": None, "scale": colours},
            "opacity": {
                "field": "panel",
                "type": "nominal",
                "title": None,
                "scale": {"domain": panels, "range": [0.5, 1]},
            },
            "tooltip": [
                *({"field": field, "type": "nominal"} for field in ("panel", "rank", "label")),
                *({"field": field, "type": "quantitative"} for field in ("start", "end")),
            ],
        },
    }
    layer = [bar]
    # Labels where there is room for them.
    if len(shown) <= _LABELS_UP_TO:
        text = {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "clip": True, "limit": 110}
        layer.append({"mark": text, "encoding": {**encoding, "text": {"field": "label", "type": "nominal"}}})
    spec = {key: value for key, value in base.spec.items() if key not in ("mark", "encoding", "data")}
    values = [
        {
            "panel": part.panel,
            "rank": part.rank,
            "label": part.label,
            "module": part.module,
            "start": part.start_s,
            "end": part.end_s,
        }
        for part in shown
    ]
    spec |= {"height": max(120, 2 * _ROW_PX * len(drawn)), "data": {"values": values}, "layer": layer}
    rows = [(part.panel, part.rank, part.label, part.start_s, part.end_s) for part in shown]
    return replace(base, spec=spec, columns=("", "rank", "cascade", "begin, s", "end, s"), rows=rows)


def wait_map(name: str, title: str, ranks: RankTable, slow: Collection[int], note: str = "") -> Chart:
    """Return the share of the time that ranks waited, by spans of steps.

    Args:
        name: name of the chart.
        title: heading.
        ranks: waits of the ranks.
        slow: ranks to be named as slow.
        note: sentence below the heading.
    """
    base = bars(name, title, {}, "percent", note)
    # A row per rank, a rectangle per span of steps.
    labels = [f"rank {row.rank}{', slow' if row.rank in slow else ''}" for row in ranks.rows]
    values = [
        {"rank": label, "from": begin, "to": end, "wait": 100 * share, "steps": f"{end:,}"}
        for label, row in zip(labels, ranks.rows, strict=True)
        for begin, end, share in zip(ranks.begins, ranks.ends, row.shares, strict=True)
        if share is not None
    ]
    spec = {
        **{key: value for key, value in base.spec.items() if key not in ("mark", "encoding", "data")},
        "height": max(60, _ROW_PX * len(labels)),
        "data": {"values": values},
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "y": {"field": "rank", "type": "nominal", "sort": None, "title": None},
            "x": {
                "field": "from",
                "type": "quantitative",
                "title": "step",
                "scale": {"zero": False, "nice": False},
            },
            "x2": {"field": "to"},
            "color": {
                "field": "wait",
                "type": "quantitative",
                "title": "waited, percent",
                "scale": {"scheme": "viridis", "domainMin": 0},
            },
            "tooltip": [
                {"field": "rank", "type": "nominal"},
                {"field": "steps", "type": "nominal", "title": "up to step"},
                {"field": "wait", "type": "quantitative", "title": "waited, percent", "format": ".3g"},
            ],
        },
    }
    rows = [
        (
            label,
            f"{row.wait_share:.1%}",
            row.last,
            "" if row.peak_gib is None else f"{row.peak_gib:.1f}",
        )
        for label, row in zip(labels, ranks.rows, strict=True)
    ]
    return replace(base, spec=spec, columns=("", "waited", "came last, steps", "peak, GiB"), rows=rows)


def _recolour_chart(spec: Mapping[str, Any], series: Sequence[str]) -> dict[str, Any]:
    """Return a specification with colours in the order of its series, and a legend that breaks into lines."""
    colour = {**spec["encoding"]["color"], "scale": {"domain": list(series)}}
    if len(series) > 1:
        longest = max(map(len, series))
        columns = next(
            (column_count for column_count, max_length in ((3, 16), (2, 21)) if longest < max_length), 1
        )
        colour["legend"] = {"columns": columns, "labelLimit": 260}
    encoding = {**spec["encoding"], "color": colour}
    if encoding["x"]["field"] == "x":  # steps are whole
        encoding["x"] = {**encoding["x"], "axis": {"tickMinStep": 1, "format": ",d"}}
    return {**spec, "encoding": encoding}


def _soften(spec: dict[str, Any], faint: Sequence[str]) -> None:
    """Draw some lines fainter than the others, and without points."""
    spec["mark"] = {"type": "line", "clip": True}
    is_faint = {"field": "series", "oneOf": list(faint)}
    spec["encoding"]["opacity"] = {"condition": {"test": is_faint, "value": 0.4}, "value": 1}
    spec["encoding"]["size"] = {"condition": {"test": is_faint, "value": 1.2}, "value": 2.5}


def _in_order(spec: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Stack series in an order."""
    index_of = {label: index for index, label in enumerate(order)}
    values = [{**value, "place": index_of[value["series"]]} for value in spec["data"]["values"]]
    encoding = {**spec["encoding"], "order": {"field": "place", "type": "quantitative"}}
    return {**spec, "data": {"values": values}, "encoding": encoding}


def _band(
    encoding: Mapping[str, object],
    binned_curves: Mapping[str, BinnedCurve],
    series: Mapping[str, Series],
    log_y: bool,
) -> dict[str, object]:
    values = [
        {"x": step, "low": low, "high": high, "series": label}
        for label, curve in binned_curves.items()
        for step, low, high in zip(series[label].step, curve.low, curve.high, strict=True)
        if low is not None and (low > 0 or not log_y)
    ]
    y = {"field": "low", "type": "quantitative"}
    return {
        "data": {"values": values},
        "mark": {"type": "area", "opacity": 0.2, "clip": True},
        "encoding": {"x": encoding["x"], "y": y, "y2": {"field": "high"}, "color": encoding["color"]},
    }
