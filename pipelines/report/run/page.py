"""Report page of training runs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reelweave.pipelines.report.run.drawing import cascades, curves, part_bars, stack_curves, wait_map
from reelweave.pipelines.report.run.metrics import PARTS
from reelweave.pipelines.report.run.numbers import RunNumbers, RunsNumbers
from reelweave.pipelines.report.run.samples import poster
from reelweave.pipelines.report.run.series import Series
from reelweave.pipelines.report.run.warnings import slow_ranks
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import lines
from reelweave.pipelines.report.web.distributions import bars
from reelweave.pipelines.report.web.template import render

TEMPLATE = "run.html"
MOST_BUCKETS = 10
MOST_RANKS = 20
_PART_NAMES = {"wait": "waiting", "sync": "gradient sum", "vae": "VAE", "text": "text encoder"}
_QUARTERS = {
    "0.125": "1st quarter (least noise)",
    "0.375": "2nd quarter",
    "0.625": "3rd quarter",
    "0.875": "4th quarter (most noise)",
}


@dataclass(frozen=True)
class SheetVideo:
    """One video of the sheet of samples.

    Attributes:
        video: address of the video relative to the page; "" without one.
        poster: address of its picture; "" without one.
        failed: why there is no video; "" otherwise.
    """

    video: str
    poster: str
    failed: str


@dataclass(frozen=True)
class Sheet:
    """Videos of a run, prompts by steps.

    Attributes:
        run: name of the run.
        note: shown and omitted videos, in words.
        steps: steps of the columns.
        rows: prompt and cells of each row.
    """

    run: str
    note: str
    steps: list[int]
    rows: list[tuple[str, list[SheetVideo]]]


Address = Callable[[int, str], str]
"""Address, relative to the page, of the path of a file in the folder of a run with this number."""


def addresses_from(folder: Path, runs: Sequence[Path]) -> Address:
    """Return addresses for a page that will lie in a folder."""

    def address(run_index: int, path: str) -> str:
        return quote(os.path.relpath(runs[run_index].absolute() / path, folder.absolute()))

    return address


def run_page(figures: RunsNumbers, address: Address, live: bool = False) -> tuple[str, dict[str, bytes]]:
    """Return the page, and the files beside it by their paths.

    Args:
        figures: numbers of the runs.
        address: addresses of videos and timelines.
        live: true if the page asks its server for newer numbers.
    """
    runs = figures.runs
    beside: dict[str, bytes] = {}
    sheets = [
        _sheet(run, run_index, address, beside) for run_index, run in enumerate(runs) if run.samples.steps
    ]
    only_run = runs[0] if len(runs) == 1 else None
    html = render(
        TEMPLATE,
        title=only_run.name if only_run else " and ".join(run.name for run in runs),
        subtitle=f"Training run in {only_run.folder}"
        if only_run
        else f"{len(runs)} training runs side by side",
        notes=[],
        figures=[(values[0], name) for name, values in summary(runs) if values[0]] if only_run else [],
        summary=[] if only_run else summary(runs),
        runs=runs,
        sections=[(title, charts) for title, charts in _sections(runs) if charts],
        sheets=sheets,
        differences=[(only_run.key, *map(_or_absent, only_run.values)) for only_run in figures.differences],
        links={run.name: _pictures(run, run_index, address) for run_index, run in enumerate(runs)},
        many=only_run is None,
        live=live,
    )
    return html, beside


def summary(runs: Sequence[RunNumbers]) -> list[tuple[str, list[str]]]:
    """Return the figures that matter most, those of each run beside each other."""
    rows: dict[str, list[str]] = {}
    for run in runs:
        for name, value in _figures(run).items():
            rows.setdefault(name, []).append(value)
    return [(name, values) for name, values in rows.items() if any(values)]


def _figures(run: RunNumbers) -> dict[str, str]:
    steps, recent, best = run.steps, run.steps.recent, run.losses.held_out_best
    of = f" of {run.total_steps:,}" if run.total_steps else ""
    last = run.checkpoints.last_complete
    return {
        "loss now": _format_value(recent.loss, "{:.4g}"),
        "held-out loss": _format_value(best.last if best else None, "{:.4g}"),
        "held-out before step 1": _format_value(best.before if best else None, "{:.4g}"),
        "steps done": f"{steps.last or 0:,}{of}",
        "left at this pace": _told_duration(run.left_s),
        "a step": _told_duration(recent.step_s),
        "MFU": _format_value(recent.mfu, "{:.1%}"),
        "TFLOPS": _format_value(None if recent.flops_per_s is None else recent.flops_per_s / 1e12, "{:,.3g}"),
        "tokens/s": _format_value(recent.tokens_per_s, "{:,.0f}"),
        "samples/s": _format_value(recent.samples_per_s, "{:,.3g}"),
        "waiting for slow ranks": _format_value(steps.whole.wait_share, "{:.1%}") if steps.waits else "",
        "peak memory": _format_value(steps.peak_gib, "{:.1f} GiB"),
        "last checkpoint": "" if last is None else f"step {last:,}",
        "began with": _name_source(run.ancestors[0]) if run.ancestors else "",
        "bad samples": f"{run.bad_samples.count:,}" if run.bad_samples.count else "",
    }


def _sections(runs: Sequence[RunNumbers]) -> Iterator[tuple[str, list[Chart]]]:
    yield "Loss", list(_loss_charts(runs))
    yield "Where the time goes", list(_time_charts(runs))
    yield "Optimizer and memory", list(_optimizer_charts(runs))
    yield "Scores of sampled videos", list(_score_charts(runs))
    yield "Cascades: planned above executed", list(_cascade_charts(runs))


def _loss_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    many = len(runs) > 1
    losses = {} if many else {"training": (runs[0].steps.series, "loss")}
    trends = {(run.name if many else "trend"): run.steps.loss_trend for run in runs if run.steps.loss_trend}
    if trends:
        share = "The trend is the mean over the twentieth of the run before each step."
        yield curves("loss", "Training loss", losses, "loss", trends=trends, note=share)
    held_out = {
        _label(run, many, "held-out"): series for run in runs for series in run.losses.held_out.whole.values()
    }
    if held_out:
        yield curves("held-out", "Held-out loss", _of_loss(held_out), "loss")
    yield from _divided_loss_charts(runs)
    yield from _term_charts(runs)


def _divided_loss_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    """Yield the losses by bucket and by diffusion time, of training and of held-out clips."""
    many = len(runs) > 1
    for kind, what in (("train", "Training loss"), ("held_out", "Held-out loss")):
        buckets, left_out = _buckets(runs, kind)
        note = (
            ""
            if not left_out
            else f"The {MOST_BUCKETS} with the longest records; {left_out} more are in --json."
        )
        if buckets:
            yield curves(f"{kind}-buckets", f"{what} by bucket", _of_loss(buckets), "loss", note=note)
        times = {
            _label(run, many, _QUARTERS.get(name, name)): series
            for run in runs
            for name, series in getattr(run.losses, kind).by_time.items()
        }
        if times:
            yield curves(f"{kind}-times", f"{what} by diffusion time", _of_loss(times), "loss")


def _term_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    """Yield a chart for each term that losses are sums of."""
    many = len(runs) > 1
    for term_index, term in enumerate(dict.fromkeys(term for run in runs for term in run.steps.terms)):
        of = {
            _label(run, many, term): (run.steps.series, f"parts/{term}")
            for run in runs
            if term in run.steps.terms
        }
        yield curves(f"term-{term_index}", f"Term of the loss: {term}", of, "loss")


def _time_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    yield from _part_charts(runs)
    yield from _draw_charts("step-time", "Time of a step", runs, "step_s", "seconds")
    yield from _draw_charts("mfu", "Model FLOPs utilization (MFU)", runs, "mfu", "share of the peak")
    yield from _draw_charts("tokens", "Throughput", runs, "tokens_per_s", "tokens/s")
    yield from _draw_charts("pauses", "Pauses between steps", runs, "pause_s", "seconds")
    yield from _rank_charts(runs)


def _part_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    """Yield the parts of a step: of each run, and over the steps of a single one."""
    named = {f"{part}_s": _PART_NAMES.get(part, part) for part in PARTS}
    parts = {
        run.name: {_PART_NAMES.get(part, part): seconds for part, seconds in run.steps.whole.parts.items()}
        for run in runs
        if run.steps.whole.parts
    }
    if parts:
        yield part_bars("parts", "Parts of a step, mean over the run", parts, list(named.values()))
    if len(runs) == 1 and parts:
        note = "Mean over all ranks; waiting is for the last rank's gradients."
        yield stack_curves("parts-steps", "Parts of a step", runs[0].steps.series, named, "seconds", note)


def _rank_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    """Yield which ranks the others waited for, and how long each rank waited."""
    waits = {
        _label(run, len(runs) > 1, f"rank {wait.rank}"): {"waited for it": wait.waited_s}
        for run in runs
        for wait in run.steps.waits[:MOST_RANKS]
    }
    if waits:
        note = "Seconds that the mean rank waited in the steps in which this rank came last."
        max_ranks = max(len(run.steps.waits) for run in runs)
        note += f" The {MOST_RANKS} worst of {max_ranks:,} ranks." if max_ranks > MOST_RANKS else ""
        yield bars("waits", "Which ranks the others waited for", waits, "seconds", note)
        yield from _draw_charts("wait-longest", "Longest wait of a rank", runs, "wait_max_s", "seconds")
    for run_index, run in enumerate(runs):
        if run.ranks.rows:
            yield _wait_chart(
                f"rank-waits-{run_index}", _label(run, len(runs) > 1, "How long each rank waited"), run
            )


def _wait_chart(name: str, title: str, run: RunNumbers) -> Chart:
    ranks = run.ranks
    note = "Share of the time by steps. A rank that waits little while the others wait holds them up."
    if len(ranks.rows) < ranks.ranks:
        note += f" The {len(ranks.rows)} of {ranks.ranks:,} ranks that waited least."
    if ranks.least_peak_gib is not None:
        note += f" Peak memory of the ranks: {ranks.least_peak_gib:.1f} to {ranks.most_peak_gib:.1f} GiB."
    slow = {wait.rank for wait in slow_ranks(run.steps.waits)}
    return wait_map(name, title, ranks, slow, note)


def _optimizer_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    yield from _draw_charts("lr", "Learning rate", runs, "lr", "learning rate")
    yield from _draw_charts(
        "grad-norm", "Gradient norm before clipping", runs, "grad_norm", "norm", log_y=True
    )
    yield from _draw_charts("memory", "Peak memory of the rank with most", runs, "peak_gib", "GiB")


def _score_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    names = list(dict.fromkeys(name for run in runs for name in run.scores.names))
    for index, name in enumerate(names):
        shown = {
            (f"{run.name}: {prompts}" if len(run.scores.prompt_sets) > 1 else run.name): line
            for run in runs
            for prompts in run.scores.prompt_sets
            if (line := run.scores.points(prompts, name))
        }
        # Vega makes expressions of the titles of axes, and not every name can stand in one.
        yield lines(f"score-{index}", name, shown, "step", "score")


def _cascade_charts(runs: Sequence[RunNumbers]) -> Iterator[Chart]:
    for run_index, run in enumerate(runs):
        shown = [timeline for timeline in run.timelines.shown if not timeline.problem]
        if not shown:
            continue
        last = shown[-1]
        idle = "; ".join(
            f"{panel} {seconds:.3g} s, {last.idle[panel]:.1%} idle" for panel, seconds in last.seconds.items()
        )
        note = f"{idle}. Scroll to zoom, drag to move."
        if last.scaled:
            note += " Planned times have the executed scale: no costs were measured."
        of = f"{run.name}: step" if len(runs) > 1 else "Step"
        yield cascades(f"cascades-{run_index}", f"{of} {last.step:,}", run.timelines.last, note)


def _draw_charts(
    name: str, title: str, runs: Sequence[RunNumbers], curve: str, y_title: str, log_y: bool = False
) -> Iterator[Chart]:
    """Yield the chart of one curve of all runs, if any has values."""
    of = {run.name: (run.steps.series, curve) for run in runs if run.steps.series.points(curve)}
    if of:
        yield curves(name, title, of, y_title, log_y)


def _buckets(runs: Sequence[RunNumbers], kind: str) -> tuple[dict[str, Series], int]:
    """Return series of the buckets with the longest records, and the number of others."""
    series_of = {name: series for run in runs for name, series in getattr(run.losses, kind).by_bucket.items()}
    longest = sorted(series_of, key=lambda name: -len(series_of[name].step))[:MOST_BUCKETS]
    chosen = {
        _label(run, len(runs) > 1, name): series
        for run in runs
        for name, series in getattr(run.losses, kind).by_bucket.items()
        if name in longest
    }
    return chosen, len(series_of) - len(longest)


def _of_loss(series: Mapping[str, Series]) -> dict[str, tuple[Series, str]]:
    return {label: (curve, "loss") for label, curve in series.items()}


def _sheet(run: RunNumbers, run_index: int, address: Address, beside: dict[str, bytes]) -> Sheet:
    """Return a run's sheet, and add its posters to the files beside the page."""
    samples = run.samples
    rows = []
    for row, (prompt, of_prompt) in enumerate(zip(samples.prompts, samples.rows, strict=True)):
        cells = []
        for step, sample in zip(samples.shown, of_prompt, strict=True):
            picture = poster(Path(run.folder), sample)
            path = f"posters/{run_index}/step-{step:06d}-{row:03d}.jpg"
            if picture is not None:
                beside[path] = picture
            video = address(run_index, sample.file) if sample.file else ""
            cells.append(SheetVideo(video, path if picture else "", sample.failed))
        rows.append((prompt, cells))
    weights = {"ema": "averaged weights", "model": "last weights"}.get(samples.weights, samples.weights)
    note = f"Videos of the {weights}; they play from the run's folder."
    if len(samples.shown) < len(samples.steps):
        note += f" {len(samples.shown)} of {len(samples.steps)} validations, evenly spread."
    if samples.prompts_left_out:
        note += f" {samples.prompts_left_out} further prompts are in the folder."
    return Sheet(run.name, note, samples.shown, rows)


def _pictures(run: RunNumbers, run_index: int, address: Address) -> dict[int, str]:
    """Return the addresses of the pictures of timelines by step."""
    return {
        timeline.step: address(run_index, timeline.picture)
        for timeline in run.timelines.shown
        if timeline.picture
    }


def _name_source(ancestor: Mapping[str, Any]) -> str:
    """Return the run and the step of what a run began with: all of it is in the table of the page."""
    parts = [part for part in ancestor["name"].split("/") if part]
    name = parts[-3] if len(parts) > 2 and parts[-2] == "checkpoints" else parts[-1]
    return name if ancestor["step"] is None else f"{name}, step {ancestor['step']:,}"


def _label(run: RunNumbers, many: bool, name: str) -> str:
    return f"{run.name}: {name}" if many else name


def _or_absent(value: str | None) -> str:
    return "(absent)" if value is None else value


def _format_value(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)


def _told_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for limit, unit, name in ((1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86_400:.3g} days"
