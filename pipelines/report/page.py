"""Page of a dataset's report, from its numbers."""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.buckets.assignment import BucketConfig, batch_bounds
from loader.dataset import Dataset
from pipelines.report.numbers.scores import ScoreStats, thresholds
from pipelines.report.sampled import sampled_section
from pipelines.report.thresholds import can_be_set, update_command
from pipelines.report.web.charts import Chart, bars, histogram, under_curves
from pipelines.report.web.template import render

if TYPE_CHECKING:
    from pipelines.report.buckets import ReportConfig

_CLEARLY_OVER, _WORTH_ADVICE = 1.005, 1.2


def render_page(dataset: Dataset, numbers: dict[str, Any], config: "ReportConfig") -> str:
    """Render the page.

    Args:
        dataset: no clip of it is read.
        numbers: result of `pipelines.report.numbers.dataset.dataset_numbers`.
        config: limits of what is shown.
    """
    totals = dataset.manifest.totals
    sources = sorted(numbers["sources"], key=lambda source: source["kept_seconds"] - source["seconds"])
    scores = [ScoreStats(**one) for one in numbers["scores"]]
    told = [one for one in scores if one.distinct > 1 or can_be_set(one)]
    return render(
        "report.html",
        title="/".join(dataset.storage.root.rsplit("/", 2)[-2:]),
        subtitle=f"Reelweave dataset at {dataset.storage.root}, shards: {len(dataset.manifest.shards)},"
        f" format {dataset.manifest.format_version}",
        notes=numbers["notes"],
        figures=[
            (f"{totals.sources:,}", "sources"),
            (f"{totals.samples:,}", "clips"),
            (_duration(totals.duration_s), "of clips"),
            (f"{totals.clip_bytes / 1e6:,.1f} MB", "encoded"),
            (f"{numbers['tokens']:,}", "tokens an epoch"),
            (f"{totals.accounting['failed']:,}", "failed"),
        ],
        stages=numbers["stages"],
        outcome=_outcome(numbers["stages"]),
        lost=[_lost(row) for row in numbers["lost"]["rows"]],
        lost_more=numbers["lost"]["count"] - len(numbers["lost"]["rows"]),
        sources=sources[: config.max_lost],
        sources_more=max(0, len(sources) - config.max_lost),
        folder=_common_folder([source["source"] for source in sources]),
        slowest={row["source"]: row["seconds"] for row in numbers["run"]["slowest"]},
        shapes=[
            _ladder("length", "Length of kept clips, seconds", numbers["duration_s"]),
            _ladder("short-side", "Short side of kept clips, pixels", numbers["short_side_px"]),
            _ladder("tokens", "Tokens of a kept clip, S", numbers["clip_tokens"]),
        ],
        scores=[(_score_chart(one), one, can_be_set(one)) for one in told],
        same=[(one.name, one.least) for one in scores if one not in told],
        thresholds=thresholds(dataset),
        command=update_command(dataset),
        bucket_note=_bucket_note(config.buckets),
        bucket_charts=[_bucket_chart(numbers["buckets"]), *_batch_chart(numbers["buckets"], config.buckets)],
        buckets=[
            {
                **bucket,
                "bucket": _shape(bucket),
                "bound": bound_shown(bucket["bound"], bucket["over_limit"]),
            }
            for bucket in numbers["buckets"]
        ],
        oversized=oversized(numbers["buckets"]),
        unassigned=[(item["key"], item["reason"]) for item in numbers["unassigned"]],
        duplicates=numbers["duplicates"],
        groups=[_group(group) for group in numbers["duplicates"]["groups"]],
        run=numbers["run"],
        map=numbers["map"],
        sampled=sampled_section(dataset),
    )


def bound_shown(bound: str, over_limit: float | None) -> str:
    """Return the limit that sets B, with the factor by which one sample exceeds the compute budget, if it does."""
    return bound if over_limit is None or over_limit < _CLEARLY_OVER else f"{bound} ({over_limit:.3g} x)"


def oversized(buckets: Sequence[Mapping[str, Any]]) -> str:
    """Return advice for buckets in which one sample far exceeds the compute budget, "" without any.

    Args:
        buckets: rows of the statistics.
    """
    over = [bucket for bucket in buckets if (bucket["over_limit"] or 0) >= _WORTH_ADVICE]
    if not over:
        return ""
    worst = max(over, key=lambda bucket: float(bucket["over_limit"]))
    share, most = sum(bucket["cost_share"] for bucket in over), worst["over_limit"]
    return (
        f"In {len(over)} of {len(buckets)} buckets, {share:.0%} of the cost, one sample alone exceeds the compute"
        f" budget: {worst['frames']} x {worst['height']} x {worst['width']} costs {most:.3g} times as much."
        f" Split its sequence over {math.ceil(most)} sequence-parallel ranks, raise the budget, or plan several"
        " microbatches per step (stream.microbatches), so that its rank gets fewer others."
    )


def _bucket_note(buckets: BucketConfig) -> str:
    if buckets.cost is None:
        bound = "⌊M_comp/S^p⌋"
        limit = "no bound" if buckets.compute_budget is None else f"{buckets.compute_budget:,.4g}"
        compute = f"M_comp = {limit}, p = {buckets.exponent:g}"
    else:
        bound = "samples that fit into the target step time"
        compute = (
            f"target = {'no bound' if buckets.target_step_s is None else f'{buckets.target_step_s:g} s'}"
        )
    per_token = buckets.compression
    return (
        f"B = max(1, min(⌊M_mem/S⌋, {bound})) with M_mem = {buckets.memory_tokens:,} tokens, {compute};"
        f" S counts {buckets.max_text_tokens} text tokens and one token per"
        f" {per_token.frames}x{per_token.height}x{per_token.width} pixels."
    )


def _outcome(stages: Sequence[Mapping[str, Any]]) -> Chart:
    """Return bars of the seconds that were kept, and of those that each stage took away."""
    ordered = sorted(stages, key=lambda row: (row["state"] != "kept", -row["seconds"]))
    kept = sum(row["seconds"] for row in stages if row["state"] == "kept")
    values = {
        "kept": {"kept": kept},
        **{row["stage"]: {row["state"]: row["seconds"]} for row in ordered if row["state"] != "kept"},
    }
    return bars("outcome", "Seconds of footage, by what decided", values, "seconds")


def _ladder(name: str, title: str, histogram: Mapping[str, Sequence[Any]]) -> Chart:
    """Return a histogram whose bins are of unequal width as bars of equal width."""
    values = {
        f"{_short(low)} to {_short(high)}": {"clips": count}
        for (low, high), count in zip(pairwise(histogram["edges"]), histogram["counts"], strict=True)
    }
    return bars(name, title, values, "clips")


def _score_chart(stats: ScoreStats) -> Chart:
    name, title = f"score-{stats.name}", stats.name.replace("_", " ")
    note = f"{stats.missing:,} clips have no value." if stats.missing else ""
    counts = {state: counts for state, counts in stats.counts.items() if any(counts)}
    if stats.by_value:
        values = {
            f"{value:g}": {state: of_state[place] for state, of_state in counts.items()}
            for place, value in enumerate(stats.edges)
        }
        return bars(name, title, values, "clips", note)
    limits = {f"min_{stats.name}": stats.min_threshold, f"max_{stats.name}": stats.max_threshold}
    drawn = {key: limit for key, limit in limits.items() if limit is not None}
    return histogram(name, title, stats.edges, stats.counts, drawn, note=note)


def _bucket_chart(buckets: Sequence[Mapping[str, Any]]) -> Chart:
    values = {_shape(bucket): {bucket["bound"]: 100 * bucket["cost_share"]} for bucket in buckets}
    return bars(
        "buckets", "Share of the cost by bucket, and what bounds its B", values, "percent of the cost"
    )


def _batch_chart(buckets: Sequence[Mapping[str, Any]], config: BucketConfig) -> list[Chart]:
    """Return the buckets below the limits of B over S (AdaptiveLoad, equation 2); none without buckets."""
    if not buckets:
        return []
    shortest, longest = buckets[0]["length"], buckets[-1]["length"]
    lengths = np.unique(np.geomspace(max(1, shortest / 1.5), longest * 1.5, 60).astype(np.int64)).tolist()
    curves: dict[str, list[tuple[float, float]]] = {}
    for length in lengths:
        for bound, batch in batch_bounds(length, config).items():
            if batch >= 1:
                curves.setdefault(bound, []).append((length, batch))
    points = [
        {
            "x": bucket["length"],
            "y": bucket["batch"],
            "size": bucket["samples"],
            "label": _shape(bucket),
            "series": bucket["bound"],
        }
        for bucket in buckets
    ]
    note = "A bucket lies on the lower of the curves; its size tells its samples."
    return [under_curves("batches", "B, and what bounds it", points, curves, "S, tokens", "B, samples", note)]


def _shape(bucket: Mapping[str, Any]) -> str:
    return f"{bucket['frames']} x {bucket['height']} x {bucket['width']}"


def _lost(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "start": _seconds(row["start_s"]), "end": _seconds(row["end_s"])}


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    copies = [{**_placed(copy), "reason": copy["reason"]} for copy in group["copies"]]
    return {**_placed(group), "key": group["key"], "copies": copies}


def _placed(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "source": row["source"].rsplit("/", 1)[-1],
        "span": f"{row['start_s']:.2f} to {row['end_s']:.2f} s",
    }


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
