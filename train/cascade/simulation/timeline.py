"""Rendering of schedules: a trace for Perfetto or chrome://tracing, and a self-contained SVG page."""

import colorsys
import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from reelweave.train.cascade.placement.mapper import needs
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Run, Schedule

NAMES = {Module.TEXT: "text", Module.VAE: "VAE", Module.DIT: "DiT"}
_WIDTH, _LEFT, _RIGHT, _TOP, _GAP = 1200, 96, 24, 96, 62  # pixels; the gap is below each panel
_PANEL = 460  # pixels of a panel's rows, subject to the limits of a row's height
_ROW = (3, 20)
_GOLDEN = 0.61803398875  # hue step between samples, so that neighbours differ most
_SHADES = {
    Module.TEXT: (0.9, 0.55),
    Module.VAE: (0.75, 0.6),
    Module.DIT: (0.48, 0.52),
}  # lightness, saturation
_CHARACTER = 6.4  # pixels, of the labels' font
_STYLE = """
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.paper { fill: #fff; } .ink { fill: #1d2430; } .soft { fill: #5b6677; } .idle { fill: #eceff4; }
.grid { stroke: #fff; stroke-width: 1; } .node { stroke: #8793a6; stroke-width: 1; } .end { stroke: #c0392b; }
.name { font-size: 14px; font-weight: 600; } .title { font-size: 17px; font-weight: 600; }
.end { stroke-width: 1.5; stroke-dasharray: 4 3; } .number { font-variant-numeric: tabular-nums; }
.cascade { stroke: #fff; stroke-width: .6; } .label { font-size: 11px; pointer-events: none; }
@media (prefers-color-scheme: dark) {
.paper { fill: #12161d; } .ink { fill: #e6eaf2; } .soft { fill: #98a2b3; } .idle { fill: #232a35; }
.grid, .cascade { stroke: #12161d; } .node { stroke: #667085; } }
"""


class Panel(NamedTuple):
    """One schedule in a chart or a trace.

    Attributes:
        name: label such as "planned".
        schedule: schedule to show.
    """

    name: str
    schedule: Schedule


def label(run: Run) -> str:
    """Return a label such as "DiT 3 (k=8)"."""
    return f"{NAMES[run.cascade.module]} {run.cascade.sample} (k={len(run.gpus)})"


def trace(panels: Sequence[Panel], gpus_per_node: int) -> dict[str, Any]:
    """Return Trace Event Format as JSON values: a process per panel, a track per GPU, an arrow per handoff.

    Args:
        panels: schedules, such as planned and executed.
        gpus_per_node: GPUs of a node, for the names of tracks.
    """
    events: list[dict[str, Any]] = []
    for process, (name, schedule) in enumerate(panels):
        pid_field = {"pid": process}
        events.append({**pid_field, "ph": "M", "name": "process_name", "args": {"name": name}})
        events.append({**pid_field, "ph": "M", "name": "process_sort_index", "args": {"sort_index": process}})
        for gpu in range(schedule.gpus):
            track = {**pid_field, "tid": gpu, "ph": "M"}
            named = f"GPU {gpu} (node {gpu // gpus_per_node})"
            events.append({**track, "name": "thread_name", "args": {"name": named}})
            events.append({**track, "name": "thread_sort_index", "args": {"sort_index": gpu}})
        for run in schedule.runs:
            args = {"sample": run.cascade.sample, "degree": len(run.gpus), "gpus": spans_told(run.gpus)}
            slice_us = {"ts": run.start_s * 1e6, "dur": (run.end_s - run.start_s) * 1e6}
            kind = {"ph": "X", "cat": NAMES[run.cascade.module], "name": label(run), "args": args}
            events.extend({**pid_field, "tid": gpu, **kind, **slice_us} for gpu in run.gpus)
        events.extend(_arrows(process, schedule))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _arrows(process: int, schedule: Schedule) -> Iterator[dict[str, Any]]:
    """Yield arrows between the main ranks of producer and consumer, from the middle of the producer's slice."""
    arrow_id = 0
    for taker, givers in zip(schedule.runs, needs(schedule.runs), strict=True):
        for giver in (schedule.runs[giver_index] for giver_index in givers):
            kind = {"pid": process, "cat": "handoff", "name": "handoff", "id": process << 32 | arrow_id}
            middle_us = (giver.start_s + giver.end_s) / 2 * 1e6
            yield {**kind, "ph": "s", "tid": giver.gpus[0], "ts": middle_us}
            yield {**kind, "ph": "f", "bp": "e", "tid": taker.gpus[0], "ts": taker.start_s * 1e6}
            arrow_id += 1


def page(panels: Sequence[Panel], title: str, gpus_per_node: int) -> str:
    """Return the chart as an HTML page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title>"
        "<style>:root { color-scheme: light dark; } body { margin: 0; } svg { display: block; margin: 0 auto;"
        f" max-width: 100%; height: auto; }}</style></head>\n<body>\n{picture(panels, title, gpus_per_node)}\n"
        "</body></html>\n"
    )


def picture(panels: Sequence[Panel], title: str, gpus_per_node: int) -> str:
    """Return an SVG: a row per GPU, a hue per sample, a shade per module, one panel below the other.

    Args:
        panels: schedules on one time scale, at least one.
        title: heading.
        gpus_per_node: GPUs of a node; lines separate nodes.
    """
    # All panels share one scale of time.
    rows = [_row(panel.schedule.gpus) for panel in panels]
    heights = [panel.schedule.gpus * row for panel, row in zip(panels, rows, strict=True)]
    end_s = max((panel.schedule.makespan_s for panel in panels), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / end_s
    size = f"0 0 {_WIDTH} {_TOP + sum(heights) + _GAP * len(panels)}"
    root = ET.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", attrib={"width": str(_WIDTH)}
    )
    # Words for those who do not see the picture.
    root.set("aria-labelledby", "timeline-title timeline-about")
    ET.SubElement(root, "title", id="timeline-title").text = title
    about = "; ".join(f"{panel.name}: {_describe_schedule(panel.schedule)}" for panel in panels)
    ET.SubElement(
        root, "desc", id="timeline-about"
    ).text = f"A row for each GPU, a colour for each sample. {about}."
    ET.SubElement(root, "style").text = _STYLE
    ET.SubElement(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    _write(root, title, _LEFT, 28, "ink title")
    _legend(root)
    top = _TOP
    for panel, row, height in zip(panels, rows, heights, strict=True):
        group = ET.SubElement(root, "g", transform=f"translate({_LEFT} {top})")
        _panel(group, panel, row, scale, end_s, gpus_per_node)
        top += height + _GAP
    return ET.tostring(root, encoding="unicode")


def spans_told(gpus: Sequence[int]) -> str:
    """Format GPU numbers as ranges such as "0-3, 8"."""
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _spans(gpus))


def _panel(group: ET.Element, panel: Panel, row: int, scale: float, end_s: float, gpus_per_node: int) -> None:
    schedule = panel.schedule
    width, height = scale * end_s, row * schedule.gpus
    _write(group, panel.name, 0, -8, "ink name")
    _write(group, _describe_schedule(schedule), _CHARACTER * 1.4 * len(panel.name) + 14, -8, "soft number")
    ET.SubElement(group, "rect", {"class": "idle", "width": _px(width), "height": str(height)})
    step_s = _step(end_s)
    for tick in range(math.floor(end_s / step_s) + 1):
        x = tick * step_s * scale
        _line(group, "grid", x, 0, x, height)
        _write(group, f"{tick * step_s:g} s", x, height + 16, "soft number", anchor="middle")
    for node, first in enumerate(range(0, schedule.gpus, gpus_per_node)):
        last = min(first + gpus_per_node, schedule.gpus)
        if first:
            _line(group, "node", -_LEFT / 2, first * row, width, first * row)
        if (last - first) * row >= 11:
            _write(group, f"node {node}", -10, (first + last) / 2 * row + 4, "soft number", anchor="end")
    for run in schedule.runs:
        _cascade(group, run, row, scale)
    x = schedule.makespan_s * scale
    _line(group, "end", x, -4, x, height + 4)


def _cascade(group: ET.Element, run: Run, row: int, scale: float) -> None:
    """Draw a rectangle per block of adjacent GPUs, with a label on the largest if it fits."""
    # A group with its title; shade by module, hue by sample.
    x, width = run.start_s * scale, max((run.end_s - run.start_s) * scale, 0.8)
    element = ET.SubElement(group, "g")
    ET.SubElement(
        element, "title"
    ).text = f"{label(run)}, {run.start_s:.2f} to {run.end_s:.2f} s, GPUs {spans_told(run.gpus)}"
    lightness, saturation = _SHADES[run.cascade.module]
    red, green, blue = colorsys.hls_to_rgb(run.cascade.sample * _GOLDEN % 1, lightness, saturation)
    fill = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    blocks = _spans(run.gpus)
    for first, last in blocks:
        ET.SubElement(
            element,
            "rect",
            {
                "class": "cascade",
                "x": _px(x),
                "y": str(first * row),
                "width": _px(width),
                "height": str((last - first + 1) * row),
                "fill": fill,
            },
        )
    # The longest label that fits the largest block, dark on light and light on dark.
    first, last = max(blocks, key=lambda block: block[1] - block[0])
    caption = next(
        (
            caption
            for caption in (label(run), str(run.cascade.sample))
            if len(caption) * _CHARACTER + 6 < width
        ),
        "",
    )
    if caption and (last - first + 1) * row >= 12:
        middle = (first + last + 1) / 2 * row + 4
        text = _write(element, caption, x + width / 2, middle, "label", anchor="middle")
        text.set("fill", "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else "#1d2430")


def _legend(root: ET.Element) -> None:
    x = float(_LEFT)
    for module, caption in ((Module.TEXT, "text encoder"), (Module.VAE, "VAE"), (Module.DIT, "DiT")):
        lightness, saturation = _SHADES[module]
        red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(0.6, lightness, saturation))
        swatch = {"x": _px(x), "y": "39", "width": "14", "height": "12"}
        ET.SubElement(root, "rect", {**swatch, "fill": f"rgb({red},{green},{blue})"})
        _write(root, caption, x + 20, 49, "soft")
        x += 34 + _CHARACTER * len(caption)
    ET.SubElement(root, "rect", {"class": "idle", "x": _px(x), "y": "39", "width": "14", "height": "12"})
    _write(root, "idle", x + 20, 49, "soft")
    _write(root, "one hue per sample; its number on the block", x + 64, 49, "soft")


def _row(gpus: int) -> int:
    return max(_ROW[0], min(_ROW[1], _PANEL // max(gpus, 1)))


def _describe_schedule(schedule: Schedule) -> str:
    return f"{schedule.makespan_s:.2f} s, {100 * schedule.idle:.1f} % idle"


def _spans(gpus: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last of each block of consecutive numbers."""
    cuts = [index for index, (gpu, other) in enumerate(pairwise(gpus), 1) if other != gpu + 1]
    bounds = zip([0, *cuts], [*cuts, len(gpus)], strict=True)
    return [(gpus[first], gpus[last - 1]) for first, last in bounds]


def _step(end_s: float) -> float:
    """Return the seconds between about eight ticks: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(end_s / 8))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= end_s / 8)


def _write(
    parent: ET.Element, caption: str, x: float, y: float, style: str, anchor: str = "start"
) -> ET.Element:
    text = ET.SubElement(parent, "text", {"class": style, "x": _px(x), "y": _px(y), "text-anchor": anchor})
    text.text = caption
    return text


def _line(parent: ET.Element, style: str, x1: float, y1: float, x2: float, y2: float) -> None:
    endpoints = {"x1": _px(x1), "y1": _px(y1), "x2": _px(x2), "y2": _px(y2)}
    ET.SubElement(parent, "line", {"class": style, **endpoints})


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
