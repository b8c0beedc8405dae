"""Page of a dataset's report, from its numbers."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reelweave.loader.buckets.stats import Histogram
from reelweave.loader.dataset import Dataset, StageTotal
from reelweave.pipelines.report.numbers.bit_rates import BitRates
from reelweave.pipelines.report.numbers.dataset import DatasetFigures
from reelweave.pipelines.report.numbers.outcomes import DuplicateGroup, DuplicateSpan, LostSpan
from reelweave.pipelines.report.numbers.scores import ScoreStats, thresholds
from reelweave.pipelines.report.sampled import sampled_section
from reelweave.pipelines.report.sections.buckets import bucket_note, bucket_section
from reelweave.pipelines.report.sections.cost_fit import cost_fit_section
from reelweave.pipelines.report.sections.recipe import recipe_section
from reelweave.pipelines.report.sections.steps import steps_section
from reelweave.pipelines.report.thresholds import can_be_set, update_command
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.distributions import bars, histogram
from reelweave.pipelines.report.web.template import render

if TYPE_CHECKING:
    from reelweave.pipelines.report.buckets import ReportConfig


def render_page(dataset: Dataset, figures: DatasetFigures, config: "ReportConfig") -> str:
    """Render the page of a dataset.

    Args:
        dataset: no clip of it is read.
        figures: result of `reelweave.pipelines.report.numbers.dataset.dataset_numbers`.
        config: limits of what is shown.
    """
    totals = dataset.manifest.totals
    # Sources that lost most come first; a score with one value needs no chart, unless it can be set.
    sources = sorted(figures.sources, key=lambda source: source.kept_seconds - source.seconds)
    charted = [score for score in figures.scores if score.distinct > 1 or can_be_set(score)]
    # The keys are the names in report.html, in the order of the page.
    return render(
        "report.html",
        title="/".join(dataset.storage.root.rsplit("/", 2)[-2:]),
        subtitle=f"Reelweave dataset at {dataset.storage.root}, shards: {len(dataset.manifest.shards)},"
        f" format {dataset.manifest.format_version}",
        notes=figures.notes,
        figures=[
            (f"{totals.sources:,}", "sources"),
            (f"{totals.samples:,}", "clips"),
            (_duration(totals.duration_s), "of clips"),
            (f"{totals.clip_bytes / 1e6:,.1f} MB", _rate_note(figures.bit_rates)),
            (f"{figures.stats.tokens:,}", "tokens an epoch"),
            (f"{totals.accounting['failed']:,}", "failed"),
        ],
        stages=figures.stages,
        outcome=_outcome(figures.stages),
        lost=[_lost_record(row) for row in figures.lost.rows],
        lost_more=figures.lost.count - len(figures.lost.rows),
        sources=sources[: config.max_lost],
        sources_more=max(0, len(sources) - config.max_lost),
        folder=_common_folder([source.source for source in sources]),
        slowest=_curation_times(
            figures.run.slowest, [source.source for source in sources[: config.max_lost]]
        ),
        shapes=[
            _ladder("length", "Length of kept clips, seconds", figures.stats.duration_s),
            _ladder("short-side", "Short side of kept clips, pixels", figures.stats.short_side_px),
            _ladder("tokens", "Tokens of a kept clip, S", figures.stats.clip_tokens),
            _ladder("bit-rate", "Bit rate of kept clips, Mbit/s", figures.bit_rates),
        ],
        scores=[(_score_chart(score), score, can_be_set(score)) for score in charted],
        same=[(score.name, score.least) for score in figures.scores if score not in charted],
        thresholds=thresholds(dataset),
        command=update_command(dataset),
        recipe_section=recipe_section(figures.recipe),
        bucket_section=bucket_section(
            figures.stats.buckets,
            figures.lengths,
            config.buckets,
            bucket_note(config.buckets, config.buckets.compression, config.buckets.max_text_tokens),
        ),
        selection=figures.selection,
        fields=figures.fields,
        leakage=figures.leakage,
        near=figures.near,
        taking_in=figures.taking_in,
        unassigned=[(item["key"], item["reason"]) for item in figures.stats.unassigned],
        steps_section=steps_section(figures.plan, figures.stats.buckets),
        cost_fit_section=cost_fit_section(figures.cost_fit),
        duplicates=figures.duplicates,
        groups=[_group(group) for group in figures.duplicates.groups],
        run=figures.run,
        map=figures.map,
        sampled=sampled_section(dataset),
    )


def _curation_times(slowest: Sequence[tuple[str, float]], shown_sources: Sequence[str]) -> dict[str, float]:
    """Return the seconds that the last run spent on the sources shown, for those that it noted as its slowest."""
    sources = set(shown_sources)
    return {source: seconds for source, seconds in slowest if seconds and source in sources}


def _outcome(stages: Sequence[StageTotal]) -> Chart:
    """Return bars of the seconds that were kept, and of those that each stage took away."""
    ordered = sorted(stages, key=lambda total: (total.state != "kept", -total.seconds))
    kept_s = sum(total.seconds for total in stages if total.state == "kept")
    values = {
        "kept": {"kept": kept_s},
        **{total.stage: {total.state: total.seconds} for total in ordered if total.state != "kept"},
    }
    return bars("outcome", "Seconds of footage, by what decided", values, "seconds")


def _rate_note(rates: BitRates) -> str:
    """Return what stands below the size of all clips: their mean bit rate and the largest one."""
    if rates.mean is None or rates.largest is None:
        return "size of clips"
    return f"size of clips, {rates.mean:.3g} Mbit/s (at most {rates.largest:.3g})"


def _ladder(name: str, title: str, binned: Histogram | BitRates) -> Chart:
    """Return a histogram whose bins are of unequal width as bars of equal width."""
    values = {
        f"{_short(low)} to {_short(high)}": {"clips": count}
        for (low, high), count in zip(pairwise(binned.edges), binned.counts, strict=True)
    }
    return bars(name, title, values, "clips")


def _score_chart(stats: ScoreStats) -> Chart:
    name, title = f"score-{stats.name}", stats.name.replace("_", " ")
    note = f"{stats.missing:,} clips have no value." if stats.missing else ""
    counts = {state: counts for state, counts in stats.counts.items() if any(counts)}
    if stats.by_value:
        values = {
            f"{value:g}": {state: of_state[index] for state, of_state in counts.items()}
            for index, value in enumerate(stats.edges)
        }
        return bars(name, title, values, "clips", note)
    limits = {f"min_{stats.name}": stats.min_threshold, f"max_{stats.name}": stats.max_threshold}
    drawn = {key: limit for key, limit in limits.items() if limit is not None}
    return histogram(name, title, stats.edges, stats.counts, drawn, note=note)


def _lost_record(row: LostSpan) -> dict[str, Any]:
    return {**asdict(row), "start": _seconds(row.start_s), "end": _seconds(row.end_s)}


def _group(group: DuplicateGroup) -> dict[str, Any]:
    copies = [{**_placed_record(copy), "reason": copy.reason} for copy in group.copies]
    return {**_placed_record(group), "key": group.key, "copies": copies}


def _placed_record(span: DuplicateGroup | DuplicateSpan) -> dict[str, str]:
    return {"source": span.source.rsplit("/", 1)[-1], "span": f"{span.start_s:.2f} to {span.end_s:.2f} s"}


def _common_folder(sources: Sequence[str]) -> str:
    """Return the folder that all sources lie in, with its last slash; empty if there is none."""
    common = os.path.commonprefix(sources)  # noqa: RUF071  # of characters: addresses are no paths
    return common[: common.rfind("/") + 1]


def _short(value: float) -> str:
    return f"{value / 1000:,.4g}k" if value >= 10_000 else f"{value:,.4g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
