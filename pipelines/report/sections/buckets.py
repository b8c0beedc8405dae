"""Buckets of a dataset or a workload: table, picture, distribution of S, and advice."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from reelweave.loader.buckets.assignment import Budgets, batch_bounds
from reelweave.loader.buckets.stats import BucketStats
from reelweave.loader.buckets.tokens import Compression
from reelweave.pipelines.report.numbers.lengths import LengthDistribution
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import points_and_curves
from reelweave.pipelines.report.web.distributions import bars, histogram

_CLEARLY_OVER, _WORTH_ADVICE = 1.005, 1.2
_MOST_BARS = 24


def bucket_section(
    buckets: Sequence[BucketStats], lengths: LengthDistribution, budgets: Budgets, note: str
) -> dict[str, Any]:
    """Return what `buckets.html` shows.

    Args:
        buckets: rows of the bucket statistics, by rising S.
        lengths: distribution of S (`reelweave.pipelines.report.numbers.lengths`).
        budgets: limits that B follows from.
        note: sentence below the heading.
    """
    return {
        "note": note,
        "charts": [
            _share_chart(buckets),
            *_batch_chart(buckets, budgets),
            *_length_chart(lengths),
        ],
        "rows": [
            {
                **asdict(bucket),
                "bucket": _shape(bucket),
                "bound": bound_shown(bucket.bound, bucket.over_limit),
            }
            for bucket in buckets
        ],
        "oversized": advise_oversized(buckets),
    }


def bound_shown(bound: str, over_limit: float | None) -> str:
    """Return the limit that sets B, with the factor by which one sample exceeds the compute budget, if it does."""
    return bound if over_limit is None or over_limit < _CLEARLY_OVER else f"{bound} ({over_limit:.3g} x)"


def advise_oversized(buckets: Sequence[BucketStats]) -> str:
    """Return advice for buckets in which one sample far exceeds the compute budget, "" without any.

    Args:
        buckets: rows of the statistics.
    """
    over = [bucket for bucket in buckets if (bucket.over_limit or 0) >= _WORTH_ADVICE]
    if not over:
        return ""
    max_over, worst = max(((bucket.over_limit or 0, bucket) for bucket in over), key=lambda pair: pair[0])
    share = sum(bucket.cost_share for bucket in over)
    return (
        f"In {len(over)} of {len(buckets)} buckets, {share:.0%} of the cost, one sample alone costs"
        f" {_WORTH_ADVICE:g} times the compute budget or more: {worst.frames} x {worst.height} x {worst.width} costs"
        f" {max_over:.3g} times as much."
        f" Split its sequence over {math.ceil(max_over)} sequence-parallel ranks, raise the budget, or plan several"
        " microbatches per step (stream.microbatches), so that its rank gets fewer others."
    )


def bucket_note(buckets: Budgets, compression: Compression, text_tokens: int) -> str:
    """Return the formula of B with its budgets, in words."""
    if buckets.cost is None:
        bound = "⌊M_comp/S^p⌋"
        limit = "no bound" if buckets.compute_budget is None else f"{buckets.compute_budget:,.4g}"
        compute = f"M_comp = {limit}, p = {buckets.exponent:g}"
    else:
        bound = "samples that fit into the target step time"
        compute = (
            f"target = {'no bound' if buckets.target_step_s is None else f'{buckets.target_step_s:g} s'}"
        )
    per_token = compression
    return (
        f"B = max(1, min(⌊M_mem/S⌋, {bound})) with M_mem = {buckets.memory_tokens:,} tokens, {compute};"
        f" S counts {text_tokens} text tokens and one token per"
        f" {per_token.frames}x{per_token.height}x{per_token.width} pixels."
    )


def _share_chart(buckets: Sequence[BucketStats]) -> Chart:
    """Return the share of the cost by bucket; of many buckets the dearest, by rising S."""
    min_share = sorted((bucket.cost_share for bucket in buckets), reverse=True)[:_MOST_BARS]
    drawn = [bucket for bucket in buckets if bucket.cost_share >= min_share[-1]] if min_share else []
    values = {_shape(bucket): {bucket.bound: 100 * bucket.cost_share} for bucket in drawn}
    rest = sum(bucket.cost_share for bucket in buckets) - sum(bucket.cost_share for bucket in drawn)
    hidden_buckets = len(buckets) - len(drawn)
    note = (
        f"{hidden_buckets} more buckets have {rest:.1%} of the cost; they are in the table."
        if hidden_buckets
        else ""
    )
    return bars(
        "buckets", "Share of the cost by bucket, and what bounds its B", values, "percent of the cost", note
    )


def _batch_chart(buckets: Sequence[BucketStats], budgets: Budgets) -> list[Chart]:
    """Return the buckets below the limits of B over S (AdaptiveLoad, equation 2); none without buckets."""
    if not buckets:
        return []
    # The limits of B, drawn a little beyond the shortest and the longest bucket.
    shortest, longest = buckets[0].length, buckets[-1].length
    lengths = np.unique(np.geomspace(max(1, shortest / 1.5), longest * 1.5, 60).astype(np.int64)).tolist()
    curves: dict[str, list[tuple[float, float]]] = {}
    for length in lengths:
        for bound, batch in batch_bounds(length, budgets).items():
            if batch >= 1:
                curves.setdefault(bound, []).append((length, batch))
    # Buckets on them.
    points = [
        {
            "x": bucket.length,
            "y": bucket.batch,
            "size": bucket.samples,
            "label": _shape(bucket),
            "series": bucket.bound,
        }
        for bucket in buckets
    ]
    note = "A bucket lies on the lower of the curves; its size tells its samples."
    return [
        points_and_curves(
            "batches", "B, and what bounds it", points, curves, "S, tokens", "B, samples", note, "bound by"
        )
    ]


def _length_chart(lengths: LengthDistribution) -> list[Chart]:
    """Return the distribution of S with its mean, as Arachne draws it (its figure 2); none without samples."""
    if lengths.mean is None:
        return []
    note = (
        f"Half of the samples have at most {lengths.p50:,} tokens, 95 % at most {lengths.p95:,}; the longest has"
        f" {lengths.span:.3g} times as many as the shortest. The line is the mean, {lengths.mean:,.0f}."
    )
    counts, mean = {"samples": lengths.counts}, {"mean": lengths.mean}
    return [
        histogram("lengths", "Distribution of S", lengths.edges, counts, mean, "S, tokens", note, log_x=True)
    ]


def _shape(bucket: BucketStats) -> str:
    return f"{bucket.frames} x {bucket.height} x {bucket.width}"
