"""A chart of a page: a Vega-Lite specification, and the table that says the same without scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
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


def axis_title(text: str) -> str:
    """Return a title that Vega can put into the expressions it makes of titles.

    Its parser takes U+2028 and U+2029 for the end of a line, which no string may hold.
    """
    return text.replace("\u2028", " ").replace("\u2029", " ")


def frame(height: int = _HEIGHT_PX) -> dict[str, Any]:
    """Return the part of a specification that all charts share."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def colour(series: Sequence[str]) -> dict[str, Any]:
    """Return the encoding of colours by series, with a legend where there are several."""
    encoding: dict[str, Any] = {"field": "series", "type": "nominal", "title": None}
    if all(name in STATE_COLOURS for name in series):
        encoding["scale"] = {"domain": list(series), "range": [STATE_COLOURS[name] for name in series]}
    if len(series) < 2:
        encoding["legend"] = None
    elif len(series) > 3 and sum(map(len, series)) > _LEGEND_LINE:
        encoding["legend"] = {"columns": 2}
    return encoding
